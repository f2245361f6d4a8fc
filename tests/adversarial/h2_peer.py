"""A peer that speaks HTTP/2 frame by frame and keeps no rule that it is not told to keep.

Frames and header compression are python3-h2's (hyperframe, hpack), without its state machine: that would refuse to
misbehave. What the server says is read into `calls`.
"""

import collections
import contextlib
import dataclasses
import select
import socket
import ssl
import struct
import time

import hpack
from hyperframe import frame as frames

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
SERVICE = "/attnd.v1.AttentionService/"
WINDOW_BYTES_MAX = (1 << 31) - 1
FRAME_BYTES_MAX = 16384  # what any peer takes
HANG_SECONDS = 60  # a bound for hangs


@dataclasses.dataclass
class Call:
    """What the server said about one stream."""

    headers: list = dataclasses.field(default_factory=list)
    data_bytes: int = 0
    window_bytes: int = 0  # that may be sent beyond the initial window
    reset: int | None = None
    ended: bool = False

    def value(self, name):
        return next((value for key, value in self.headers if key == name), None)

    def over(self):
        return self.ended or self.reset is not None

    def grpc_status(self):
        status = self.value("grpc-status")
        return None if status is None else int(status)


class H2Peer:
    """A connection. Polite: it confirms SETTINGS, answers PINGs and opens its own window wide.

    Thread rule: one owner.
    """

    def __init__(self, server, settings=None, sock=None, polite=True):
        self.sock = sock or socket.create_connection(("127.0.0.1", server.port), timeout=HANG_SECONDS)
        self.encoder, self.decoder = hpack.Encoder(), hpack.Decoder()
        self.calls = collections.defaultdict(Call)
        self.heard = collections.Counter()  # frames by type
        self.goaway, self.closed, self.pongs = None, False, 0
        self.window_bytes = self.initial_window_bytes = 65535
        self._unread, self._header_parts, self._next_stream = b"", b"", 1
        self._polite, self._answers = polite, []
        self.send(PREFACE, frames.SettingsFrame(0, settings=settings or {}))
        if polite:
            self.send(frames.WindowUpdateFrame(0, window_increment=WINDOW_BYTES_MAX - 65535))

    # What is sent.

    def send(self, *parts):
        """False when the server has ended the connection."""
        data = b"".join(part if isinstance(part, bytes) else part.serialize() for part in parts)
        try:
            self.sock.sendall(data)
        except (ConnectionError, BrokenPipeError):
            self.closed = True
        return not self.closed

    def flood(self, data, reads=True, stalled_seconds_max=10):
        """Sends all of it until the server ends the connection or takes no more; bytes that were taken.

        `reads`: what comes meanwhile, as an attacker does who wants to be served.
        """
        self.sock.setblocking(False)
        view, sent, taken_at = memoryview(data), 0, time.monotonic()
        try:
            while sent < len(view) and not self.closed and self.goaway is None:
                readable, writable, _ = select.select([self.sock] if reads else [], [self.sock], [], 0.1)
                if readable:
                    self._receive()
                if writable:
                    with contextlib.suppress(BlockingIOError):
                        sent += self.sock.send(view[sent : sent + (1 << 16)])
                        taken_at = time.monotonic()
                elif time.monotonic() > taken_at + stalled_seconds_max:
                    break
        except ConnectionError:
            self.closed = True
        finally:
            with contextlib.suppress(OSError):
                self.sock.settimeout(HANG_SECONDS)
        if sent == len(view):  # else the last frame was not whole
            self._answer()
        return sent

    def send_within_windows(self, stream, data, silent_seconds_max=2):
        """DATA as fast as the server lets it; the bytes sent until it kept the window shut for so long."""
        sent, call = 0, self.calls[stream]
        while sent < len(data) and not call.over() and self.goaway is None and not self.closed:
            room = min(self.window_bytes, self.initial_window_bytes + call.window_bytes, len(data) - sent)
            if room <= 0:
                heard = sum(self.heard.values())
                if not self.read_until(lambda before=heard: sum(self.heard.values()) > before, silent_seconds_max):
                    break
                continue
            part = data[sent : sent + min(room, 1 << 20)]
            self.flood(b"".join(each.serialize() for each in data_frames(stream, part)))
            sent += len(part)
            self.window_bytes -= len(part)
            call.window_bytes -= len(part)
        return sent

    def new_stream(self):
        stream, self._next_stream = self._next_stream, self._next_stream + 2
        return stream

    def header_block(self, path, *extra, **replaced):
        """Those of a gRPC call, with values replaced by name (`te`, `content_type`, ...; None leaves one out)."""
        names = {"content_type": "content-type", "method": ":method", "scheme": ":scheme", "authority": ":authority"}
        headers = {
            ":method": "POST",
            ":scheme": "http",
            ":path": path if path.startswith("/") else SERVICE + path,
            ":authority": "attnd",
            "te": "trailers",
            "content-type": "application/grpc",
        }
        headers.update({names.get(name, name): value for name, value in replaced.items()})
        return self.encoder.encode([(k, v) for k, v in headers.items() if v is not None] + list(extra))

    def headers(self, path, *extra, end_stream=False, **replaced):
        """(stream, its HEADERS frame)."""
        stream = self.new_stream()
        flags = ["END_HEADERS"] + (["END_STREAM"] if end_stream else [])
        return stream, frames.HeadersFrame(stream, self.header_block(path, *extra, **replaced), flags=flags)

    def call(self, path, message, *extra, **replaced):
        """Begins a whole unary call of a message that fits one window; its stream."""
        stream, head = self.headers(path, *extra, **replaced)
        self.send(head, *data_frames(stream, prefixed(message), end_stream=True))
        return stream

    # What is heard.

    def read_until(self, condition, seconds_max=HANG_SECONDS):
        """Whether it came true before the connection ended or the time was over."""
        end = time.monotonic() + seconds_max
        while not condition():
            left = end - time.monotonic()
            if self.closed or left <= 0:
                return condition()
            readable, _, _ = select.select([self.sock], [], [], min(left, 0.5))
            if readable:
                self._receive()
                self._answer()
        return True

    def outcome(self, stream):
        """How the call ended: its grpc-status, or "reset", "goaway", "closed", or None for no end at all."""
        self.read_until(lambda: self.calls[stream].over() or self.goaway is not None)
        if self.calls[stream].grpc_status() is not None:
            return self.calls[stream].grpc_status()
        if self.calls[stream].reset is not None:
            return "reset"
        if self.goaway is not None:
            return "goaway"
        if self.closed:
            return "closed"
        return self.calls[stream].value(":status") if self.calls[stream].ended else None

    def pings(self):
        """Whether the server answers a PING of ours: it is alive and has read everything before."""
        before = self.pongs
        return self.send(frames.PingFrame(0, b"attnd???")) and self.read_until(lambda: self.pongs > before)

    def _answer(self):
        answers, self._answers = self._answers, []
        if answers and not self.closed:
            self.send(*answers)

    def _receive(self):
        try:
            data = self.sock.recv(1 << 16)
            while data and isinstance(self.sock, ssl.SSLSocket) and self.sock.pending():  # which select cannot see
                data += self.sock.recv(1 << 16)
        except BlockingIOError:
            return
        except ConnectionError:
            data = b""
        self.closed = self.closed or not data
        self._unread += data
        while len(self._unread) >= 9:
            parsed, length = frames.Frame.parse_frame_header(memoryview(self._unread[:9]))
            if len(self._unread) < 9 + length:
                return
            parsed.parse_body(memoryview(self._unread[9 : 9 + length]))
            self._unread = self._unread[9 + length :]
            self._hear(parsed)

    def _hear(self, heard):
        self.heard[type(heard).__name__] += 1
        call = self.calls[heard.stream_id] if heard.stream_id else None
        if isinstance(heard, (frames.HeadersFrame, frames.ContinuationFrame)):
            self._header_parts += heard.data
            if "END_HEADERS" in heard.flags:
                call.headers += self.decoder.decode(self._header_parts)
                self._header_parts = b""
        elif isinstance(heard, frames.DataFrame):
            call.data_bytes += len(heard.data)
        elif isinstance(heard, frames.WindowUpdateFrame):
            if call is None:
                self.window_bytes += heard.window_increment
            else:
                call.window_bytes += heard.window_increment
        elif isinstance(heard, frames.SettingsFrame):
            name = frames.SettingsFrame.INITIAL_WINDOW_SIZE
            if self._polite and "ACK" not in heard.flags:
                self._answers.append(frames.SettingsFrame(0, flags=["ACK"]))
            self.initial_window_bytes = heard.settings.get(name, self.initial_window_bytes)
        elif isinstance(heard, frames.PingFrame):
            self.pongs += "ACK" in heard.flags
            if self._polite and "ACK" not in heard.flags:
                self._answers.append(frames.PingFrame(0, heard.opaque_data, flags=["ACK"]))
        elif isinstance(heard, frames.RstStreamFrame):
            call.reset = heard.error_code
        elif isinstance(heard, frames.GoAwayFrame):
            self.goaway = heard.error_code
        if call is not None and "END_STREAM" in heard.flags:
            call.ended = True

    # Its end.

    def close(self):
        self.sock.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


def prefixed(message, length=None, compressed=0):
    """A gRPC message with its prefix; `length` is what the prefix claims."""
    return struct.pack(">BI", compressed, len(message) if length is None else length) + message


def data_frames(stream, data, end_stream=False):
    for at in range(0, max(len(data), 1), FRAME_BYTES_MAX):
        part = frames.DataFrame(stream, data[at : at + FRAME_BYTES_MAX])
        if end_stream and at + FRAME_BYTES_MAX >= len(data):
            part.flags.add("END_STREAM")
        yield part
