"""What goes wrong, with the server's own words: one class for each status that callers handle differently."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import grpc
from google.protobuf import any_pb2, duration_pb2
from google.protobuf.message import DecodeError

from attnd import _wire


class Error(Exception):
    """A call that failed. `str(error)` is what the server said.

    code            grpc.StatusCode
    message         the server's words, or this package's where it refused before it asked
    retry_after_s   seconds after which the server asked to come again; None where it did not
    """

    code: grpc.StatusCode = grpc.StatusCode.UNKNOWN

    def __init__(self, message: str, code: grpc.StatusCode | None = None, retry_after_s: float | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.retry_after_s = retry_after_s
        if code is not None:
            self.code = code

    def __str__(self) -> str:
        return self.message


class Cancelled(Error):
    """The caller gave the call up, or the server did because it ends."""

    code = grpc.StatusCode.CANCELLED


class InvalidArgument(Error, ValueError):
    """The request means nothing: the message names the field, what came and what was expected."""

    code = grpc.StatusCode.INVALID_ARGUMENT


class DeadlineExceeded(Error, TimeoutError):
    """The call's timeout passed, or would have."""

    code = grpc.StatusCode.DEADLINE_EXCEEDED


class NotFound(Error, LookupError):
    """No tensor or weight set has this name."""

    code = grpc.StatusCode.NOT_FOUND


class AlreadyExists(Error):
    """A weight set has this name and version."""

    code = grpc.StatusCode.ALREADY_EXISTS


class PermissionDenied(Error, PermissionError):
    """The server knows who asks, and does not allow it."""

    code = grpc.StatusCode.PERMISSION_DENIED


class Unauthenticated(Error, PermissionError):
    """The server does not know who asks: a token or a certificate is missing or not one of its own."""

    code = grpc.StatusCode.UNAUTHENTICATED


class ResourceExhausted(Error):
    """No room: for ever, with the amount needed, the amount allowed and the flag, or for now, with `retry_after_s`."""

    code = grpc.StatusCode.RESOURCE_EXHAUSTED


class FailedPrecondition(Error):
    """Not as things stand: a stored tensor is not as long as the append expected, or the client is closed."""

    code = grpc.StatusCode.FAILED_PRECONDITION


class Unimplemented(Error, NotImplementedError):
    """This server does not have the method."""

    code = grpc.StatusCode.UNIMPLEMENTED


class Internal(Error):
    """A fault of the server, or an answer that is none."""

    code = grpc.StatusCode.INTERNAL


class Unavailable(Error, ConnectionError):
    """No server answers there, or it is about to end."""

    code = grpc.StatusCode.UNAVAILABLE


_CLASSES = {kind.code: kind for kind in Error.__subclasses__()}
_CODES: dict[int, grpc.StatusCode] = {code.value[0]: code for code in grpc.StatusCode}
_DETAILS = "grpc-status-details-bin"
# grpc.aio's words where a stream could not be written to, which it says in place of what the stream ended with.
_NOT_SENT = "Internal error from Core"
_RETRY_INFO = "type.googleapis.com/google.rpc.RetryInfo"


def of_code(code: grpc.StatusCode, message: str, retry_after_s: float | None = None) -> Error:
    return _CLASSES.get(code, Error)(message, code, retry_after_s)


def of_number(code: int, message: str) -> Error:
    """Of a google.rpc.Code."""
    return of_code(_CODES.get(code, grpc.StatusCode.UNKNOWN), message)


def of_rpc(error: Any, seconds_left: float | None = None) -> Error:
    """Of what grpc or grpc.aio raised."""
    if error.code() == grpc.StatusCode.INTERNAL and error.details() == _NOT_SENT:
        if seconds_left is not None and seconds_left <= 0:
            return DeadlineExceeded("Deadline Exceeded")
        return Unavailable("the stream ended while its request was being sent")
    delays = [_retry_after_s(value) for name, value in error.trailing_metadata() or () if name == _DETAILS]
    return of_code(error.code(), error.details() or "", next(iter(delays), None))


def check_time(timeout: float) -> None:
    """DeadlineExceeded where none is left: gRPC might answer all the same."""
    if timeout <= 0:
        raise DeadlineExceeded("no time left for the call")


def closed() -> Error:
    """Of a call on a client after its end."""
    return FailedPrecondition("the client is closed")


@contextlib.contextmanager
def reading() -> Iterator[None]:
    """Around what reads a reply: Internal for bytes that are none."""
    try:
        yield
    except (ValueError, KeyError, DecodeError) as error:
        raise Internal(f"the server's answer is none: {error}") from error


def _retry_after_s(status: bytes) -> float | None:
    """Of google.rpc.Status { Any details = 3; } with a RetryInfo { Duration retry_delay = 1; } among them."""
    try:
        for detail in _wire.values(memoryview(status), 3):
            found = any_pb2.Any.FromString(bytes(detail))
            if found.type_url == _RETRY_INFO:
                for delay in _wire.values(memoryview(found.value), 1):
                    duration = duration_pb2.Duration.FromString(bytes(delay))
                    return float(duration.seconds + duration.nanos * 1e-9)
    except (ValueError, DecodeError):
        pass  # details of somebody between: the code and the words stand without them
    return None
