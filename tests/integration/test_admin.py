"""The admin port: right answers whatever the server is busy with, and no way to harm it or others through it."""

import contextlib
import html.parser
import queue
import re
import signal
import socket
import subprocess

import pytest

import wire
from aftermath import computes, good_call, leaves_nothing, long_request, memory_reserved, random_request
from attnd.v1 import attention_pb2 as pb
from attnd_server import BIN, CALL_SECONDS_MAX, AttndServer, eventually
from prometheus_page import Page

HOSTILE = "<script>alert(1)</script>\"'&\x1b[31m"


@pytest.fixture
def server():
    with AttndServer(admin=True) as running:
        yield running


def test_paths_and_methods(server):
    for path in ("/healthz", "/readyz", "/metrics", "/statusz", "/loglevel"):
        assert server.admin(path)[0] == 200, path
        assert server.admin(path, "HEAD") == (200, "")
        for method in ("POST", "DELETE", "OPTIONS", "PATCH") + (("PUT",) if path != "/loglevel" else ()):
            assert server.admin(path, method)[0] == 405, (path, method)
    for path in ("/", "/healthz/", "/metrics/x", "/..%2f..%2fetc/passwd", "/%00", "/Healthz"):
        assert server.admin(path)[0] in (400, 404), path
    assert server.admin("/healthz?probe=1") == (200, "ok\n")


def test_requests_that_are_none(server):
    with leaves_nothing(server):
        for text in (
            b"\r\n\r\n",
            b"GET\r\n\r\n",
            b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
            b"GET /healthz HTTP/9.9\r\n\r\n",
            b"GET /healthz HTTP/1.1\r\n" + b"x: y\r\n" * 10000 + b"\r\n",
            b"GET /" + b"x" * (1 << 20) + b" HTTP/1.1\r\n\r\n",
            b"PUT /loglevel HTTP/1.1\r\nContent-Length: 99999999999\r\n\r\n" + b"x" * 100000,
            b"PUT /loglevel HTTP/1.1\r\nContent-Length: -1\r\n\r\n",
            b"PUT /loglevel HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nfffffffffffffff\r\ninfo\r\n",
        ):
            with connected(server) as peer, contextlib.suppress(ConnectionError):
                peer.sendall(text)
                answer = peer.recv(65536)
                assert not answer or not answer.startswith(b"HTTP/1.1 200"), (text[:80], answer)
        assert server.admin("/loglevel") == (200, "info\n")
        assert server.admin("/healthz") == (200, "ok\n")


def test_the_log_level(server):
    def attend_lines():
        return server.log().count("Attend")

    assert server.admin("/loglevel") == (200, "info\n")
    good_call(server)
    eventually("it is logged", lambda: attend_lines() == 2)
    assert server.admin("/loglevel", "PUT", "error") == (200, "error\n")
    assert server.admin("/loglevel") == (200, "error\n")
    good_call(server)
    # Lines are written after the answers, and each has the level of that moment.
    eventually("it would be logged", lambda: Page(server).sum("attnd_requests_total") == 4 and server.rests())
    assert server.admin("/loglevel", "PUT", "info\n") == (200, "info\n")
    good_call(server)
    eventually("it is logged", lambda: attend_lines() >= 4)
    assert attend_lines() == 4
    for word in ("", "loud", "INFO", "info; off", "x" * 100):
        status, text = server.admin("/loglevel", "PUT", word)
        assert status in (400, 413) and "expected" in text
    # A page that a browser on this machine has open sends where it comes from.
    assert server.admin("/loglevel", "PUT", "off", {"Origin": "null"})[0] == 403
    assert server.admin("/loglevel") == (200, "info\n")


def test_ready_while_all_cores_compute_and_memory_is_full():
    with AttndServer("--memory_bytes_max=200000000", admin=True) as server:
        sent = queue.SimpleQueue()
        stub = server.stub()
        # Nearly all of the memory for what never comes whole, and a giant in what is left.
        allowed = Page(server).sum("attnd_memory_allowed_bytes")
        giant = long_request(16384)
        rows = int(allowed - 60e6) // (4 * 4 * 1024)
        for message in list(wire.stream_messages(1, random_request(1, rows, 1024)))[:2]:
            sent.put(message)
        replies = stub.AttendStream(iter(sent.get, None), timeout=CALL_SECONDS_MAX)
        eventually("it is reserved", lambda: memory_reserved(server) > 0)
        with computes(server, 0.2):
            call = server.stub().Attend.future(giant, timeout=CALL_SECONDS_MAX)
        page = Page(server)
        assert page.sum("attnd_memory_used_bytes") > 0.5 * allowed
        assert page.sum("attnd_compute_units") > 0
        for _ in range(20):
            assert server.admin("/readyz") == (200, "ok\n")
        assert not call.done()
        assert Page(server).sum("attnd_readiness_checks_total", result="ok") == 20
        call.cancel()
        replies.cancel()
        sent.put(None)
        eventually("memory is back", lambda: memory_reserved(server) == 0)
        good_call(server)


def test_not_ready_from_the_first_signal_on():
    with AttndServer("--drain_ms=600000", admin=True) as server:
        assert server.admin("/readyz") == (200, "ok\n")
        with computes(server, 0.1):
            call = server.stub().Attend.future(long_request(16384), timeout=CALL_SECONDS_MAX)
        server.signal(signal.SIGTERM)
        eventually("it drains", lambda: server.admin("/readyz")[0] != 200)
        for _ in range(3):
            status, words = server.admin("/readyz")
            assert status == 503 and "draining" in words
        assert server.admin("/healthz") == (200, "ok\n")
        page = Page(server)
        assert page.sum("attnd_draining") == 1
        assert page.sum("attnd_requests_in_flight", method="Attend") == 1
        assert "(draining)" in server.admin("/statusz")[1]
        call.cancel()
        assert server.wait() == 0


class Text(html.parser.HTMLParser):
    """The tags of a page, and its text."""

    def __init__(self, page):
        super().__init__()
        self.tags, self.text = set(), ""
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        self.tags.add(tag)
        assert not [name for name, _ in attrs if name.startswith("on") or name in ("href", "src")]

    def handle_data(self, data):
        self.text += data


def test_the_page_shows_what_runs_and_what_was_slow_as_text(server):
    with computes(server, 0.1):
        call = server.stub().Attend.future(long_request(16384), timeout=CALL_SECONDS_MAX)
    header = next(wire.stream_messages(1, random_request(1, 4, 4)))
    piece = pb.AttendStreamRequest(problem_id=1, piece=pb.TensorPiece(tensor=HOSTILE, data=b"0000"))
    list(server.stub().AttendStream(iter([header, piece]), timeout=CALL_SECONDS_MAX))
    eventually("it is listed", lambda: "INVALID_ARGUMENT" in server.admin("/statusz")[1])
    page = server.admin("/statusz")[1]
    shown = Text(page)
    assert shown.tags <= set("html head meta title style body h1 h2 h3 p table tr th td svg rect text".split())
    assert "B1 Hq1 Hkv1 Nq16384 Nk16384 dk64 dv64" in shown.text and "waits or computes" in shown.text
    assert "<script>alert(1)" in shown.text and "<script" not in page  # as text, in the error of the slowest
    assert "INVALID_ARGUMENT" in shown.text
    info = server.stub().Info(pb.InfoRequest(), timeout=CALL_SECONDS_MAX)
    assert f"attnd {info.version}" in shown.text
    for limit in info.limits:
        assert re.search(rf"<td>{limit.flag}</td><td class=\"n\">{limit.value}</td>", page), limit
    for flag in ("admin_listen", "log_format", "reflection"):
        assert f"<td>{flag}</td>" in page
    call.cancel()
    eventually("memory is back", lambda: memory_reserved(server) == 0)
    good_call(server)


@contextlib.contextmanager
def connected(server, receive_bytes=0):
    with socket.socket() as peer:
        if receive_bytes:
            peer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
        peer.settimeout(CALL_SECONDS_MAX)
        peer.connect(("127.0.0.1", server.admin_port))
        yield peer


def test_slow_clients_hold_up_nobody(server):
    """As many as there are threads and more: silent, in the middle of a header, and not reading."""
    with leaves_nothing(server) as descriptors, contextlib.ExitStack() as peers:
        resident = server.resident_bytes()
        for number in range(90):
            peer = peers.enter_context(connected(server, receive_bytes=2048))
            if number % 3 == 1:
                peer.sendall(b"GET /metrics HTTP/1.1\r\nHost: x\r\nX-Slow: ")
            if number % 3 == 2:
                peer.sendall(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n")
        good_call(server)
        server.close_channels()
        assert server.admin("/healthz") == (200, "ok\n")
        # Threads, those that wait for one, and ours: of HTTP, and of the good call where it is still closing.
        assert server.descriptors() <= descriptors + 32 + 16 + 2
        assert Page(server).sum("attnd_requests_total") > 0
        # Each was cut off, though none of them ever ended.
        eventually("descriptors are given back", lambda: server.descriptors() <= descriptors)
        assert server.resident_bytes() < resident + (32 << 20) or not server.memory_is_its_own()


def test_a_port_that_is_taken(server):
    command = [BIN / "attnd", "--listen=127.0.0.1:0", f"--admin_listen=127.0.0.1:{server.admin_port}"]
    ended = subprocess.run(command, capture_output=True, text=True, check=False, timeout=CALL_SECONDS_MAX)
    assert ended.returncode == 2
    assert "--admin_listen" in ended.stderr and f"127.0.0.1:{server.admin_port}" in ended.stderr
    assert server.admin("/healthz") == (200, "ok\n")


@pytest.mark.parametrize("value", ["9090", "127.0.0.1:99999", "unix:/tmp/x", "127.0.0.1:"])
def test_an_address_that_is_none(value):
    command = [BIN / "attnd", "--listen=127.0.0.1:0", f"--admin_listen={value}"]
    ended = subprocess.run(command, capture_output=True, text=True, check=False, timeout=CALL_SECONDS_MAX)
    assert ended.returncode == 2 and "--admin_listen" in ended.stderr and "host:port" in ended.stderr


def test_without_one():
    with AttndServer() as server:
        good_call(server)
        assert server.admin_port == 0 and "admin port" not in server.log()
