"""What reaches a port with mutual TLS from peers without a certificate: nothing of HTTP/2 is read, much as they send.

Who is let in and who is not, and half a handshake, stand in integration/test_tls.py.
"""

import contextlib
import socket
import ssl

import pytest
from hyperframe import frame as frames

from attnd_server import AttndServer
from certificates import Authority
from h2_peer import PREFACE, H2Peer
from survival import survives

MIB = 1 << 20
PEERS = 20


@pytest.fixture(scope="module")
def pki(tmp_path_factory):
    """What attnd reads, and a certificate of somebody else's authority."""
    folder = tmp_path_factory.mktemp("pki")
    ours = Authority(folder / "ours").issue(folder / "server", "server", "DNS:localhost,IP:127.0.0.1")
    theirs = Authority(folder / "theirs").issue(folder / "stranger", "stranger")
    return ours, theirs


def header_of_4_mib():
    """The dribble that costs most where it is read: one header in CONTINUATION frames."""
    part = frames.ContinuationFrame(1, b"v" * 1024).serialize()
    head = frames.HeadersFrame(1, b"\x00\x01x").serialize()
    return PREFACE + frames.SettingsFrame(0).serialize() + head + part * 4096


def plain(_, peer):
    return peer


def without_certificate(_, peer):
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.set_alpn_protocols(["h2"])
    return context.wrap_socket(peer)


def with_a_strangers_certificate(pki, peer):
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.set_alpn_protocols(["h2"])
    context.load_cert_chain(pki[1] / "tls.crt", pki[1] / "tls.key")
    return context.wrap_socket(peer)


@pytest.mark.parametrize("dress", [plain, without_certificate, with_a_strangers_certificate])
def test_strangers_send_what_they_like(pki, dress, tmp_path):
    """Over a Unix socket the operator calls meanwhile, and afterwards all is as it was."""
    path = tmp_path / "socket"
    flags = [f"--tls_certificate={pki[0]}/tls.crt", f"--tls_key={pki[0]}/tls.key", f"--tls_client_ca={pki[0]}/ca.crt"]
    with AttndServer(*flags, "--handshake_ms=1000", listen=f"127.0.0.1:0,unix:{path}") as server:
        server.address = f"unix:{path}"
        with survives(server, f"mutual TLS, {dress.__name__}", 20000, 48 * MIB):
            data = header_of_4_mib()
            for _ in range(PEERS):
                peer = socket.create_connection(("127.0.0.1", server.port), timeout=60)
                with contextlib.suppress(OSError):  # cut off, at the latest within the data
                    peer = dress(pki, peer)
                    peer.sendall(data)
                    while peer.recv(1 << 16):
                        pass
                peer.close()


def test_an_operators_peer_is_served(pki, tmp_path):
    """The same frames from a peer whom the server lets in are an ordinary connection: the tests' peer speaks TLS."""
    flags = [f"--tls_certificate={pki[0]}/tls.crt", f"--tls_key={pki[0]}/tls.key"]
    with AttndServer(*flags) as server:
        sock = without_certificate(pki, socket.create_connection(("127.0.0.1", server.port), timeout=60))
        sock.settimeout(60)
        with H2Peer(server, sock=sock) as peer:
            assert peer.outcome(peer.call("Info", b"", scheme="https")) == 0
