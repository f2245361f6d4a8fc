"""Whom a client trusts and who it says it is, and the options of its channel: the same with and without asyncio."""

from __future__ import annotations

import ipaddress
import numbers
import os
import pathlib
from dataclasses import dataclass
from typing import Any, TypedDict

import grpc

from attnd._errors import FailedPrecondition, InvalidArgument, NotFound

# The contents themselves, or the file that they are read from when a client connects.
Pem = bytes | str | os.PathLike[str] | None

TIMEOUT_S = 60.0
_OPTIONS: tuple[tuple[str, Any], ...] = (
    # Sizes are the server's to limit (its flag message_bytes_max), not this side's.
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
    # A server that vanished is noticed while a call waits for it.
    ("grpc.keepalive_time_ms", 20000),
    ("grpc.keepalive_timeout_ms", 10000),
    # One that comes back is found as soon as calls are asked again (_retry.py).
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 5000),
)
_SECONDS_MAX = 1e9  # more is more than gRPC's clock counts
_TOKEN_CHARACTERS_MAX = 4096


class Security(TypedDict, total=False):
    """Whom a client trusts, and who it says it is: the keywords of `connect`, which says what they mean."""

    tls: bool
    tls_ca: Pem
    tls_certificate: Pem
    tls_key: Pem
    tls_server_name: str | None
    token: str | None
    token_file: str | os.PathLike[str] | None
    allow_plaintext_token: bool


@dataclass(frozen=True)
class Connection:
    target: str
    credentials: Any  # grpc.ChannelCredentials, or None for plaintext
    metadata: tuple[tuple[str, str], ...]  # of every call
    options: list[tuple[str, Any]]


def connection(
    target: str,
    *,
    tls: bool = False,
    tls_ca: Pem = None,
    tls_certificate: Pem = None,
    tls_key: Pem = None,
    tls_server_name: str | None = None,
    token: str | None = None,
    token_file: str | os.PathLike[str] | None = None,
    allow_plaintext_token: bool = False,
) -> Connection:
    """Reads the files. NotFound or InvalidArgument names one that cannot be read or holds something else."""
    if not isinstance(target, str) or not target:
        raise InvalidArgument(f"target: {target!r}, expected host:port, unix:path or another target of gRPC's")
    options = list(_OPTIONS)
    # A proxy of the environment would read what is meant to stay on this machine, a token above all.
    if is_local(target):
        options.append(("grpc.enable_http_proxy", 0))
    if (tls_certificate is None) != (tls_key is None):
        raise InvalidArgument("tls_certificate and tls_key: one without the other, expected both or neither")
    credentials = None
    if tls or any(value is not None for value in (tls_ca, tls_certificate, tls_server_name)):
        credentials = grpc.ssl_channel_credentials(
            root_certificates=_pem("tls_ca", tls_ca),
            private_key=_pem("tls_key", tls_key),
            certificate_chain=_pem("tls_certificate", tls_certificate),
        )
        if tls_server_name is not None:
            options.append(("grpc.ssl_target_name_override", tls_server_name))
    metadata: tuple[tuple[str, str], ...] = ()
    if token is not None and token_file is not None:
        raise InvalidArgument("token and token_file: both given, expected one")
    if token_file is not None:
        token = _read("token_file", token_file).decode(errors="replace")
    if token is not None:
        token = token.strip()
        if not token or len(token) > _TOKEN_CHARACTERS_MAX or any(not " " < letter < "\x7f" for letter in token):
            raise InvalidArgument("token: expected one line of visible ASCII without blanks")
        if credentials is None and not allow_plaintext_token and not is_local(target):
            raise FailedPrecondition(
                f"token: it is not sent to {target} without TLS, where others can read it; expected TLS, a Unix socket "
                "or loopback"
            )
        metadata = (("authorization", f"Bearer {token}"),)
    return Connection(target, credentials, metadata, options)


def seconds(name: str, value: Any) -> float:
    """The argument `name`, a time. Infinity is a long one."""
    if isinstance(value, bool) or not isinstance(value, numbers.Real) or value != value:
        raise InvalidArgument(f"{name}: {value!r}, expected seconds")
    return min(float(value), _SECONDS_MAX)


def is_local(target: str) -> bool:
    """Whether every address of a gRPC target is a Unix socket or loopback."""
    if target.startswith(("unix:", "unix-abstract:")):
        return True
    # dns://authority/host asks another name server, which may answer anything.
    for scheme in ("ipv4:", "ipv6:", "dns:///", "dns:"):
        if target.startswith(scheme):
            target = target.removeprefix(scheme)
            break
    return all(_is_loopback(address) for address in target.split(","))


def _is_loopback(address: str) -> bool:
    """host, host:port, [v6] or [v6]:port."""
    if address.startswith("["):
        host = address[1:].partition("]")[0]
    else:
        host = address.partition(":")[0] if address.count(":") == 1 else address
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _pem(name: str, value: Pem) -> bytes | None:
    if value is None:
        return None
    pem = value if isinstance(value, bytes) else _read(name, value)
    if b"-----BEGIN " not in pem:
        where = name if isinstance(value, bytes) else os.fspath(value)
        raise InvalidArgument(f"{where}: expected PEM, as {name} is")
    return pem


def _read(name: str, path: str | os.PathLike[str]) -> bytes:
    try:
        return pathlib.Path(path).read_bytes()
    except OSError as error:
        kind = NotFound if isinstance(error, FileNotFoundError) else InvalidArgument
        raise kind(f"{name}: {os.fspath(path)}: {error.strerror}") from error
