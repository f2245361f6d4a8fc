"""A client that vanishes in the middle: killed, reset, or silent, while the server computes, reads or sends.

A killed one is noticed by the end of its connection, a silent one only by the server's own pings.
"""

import queue
import subprocess
import sys
import time

import pytest

import wire
from aftermath import cpu_spent, leaves_nothing, long_request, memory_reserved, random_request
from attnd.v1 import attention_pb2_grpc
from attnd_server import AttndServer, ROOT, eventually
from tcp_proxy import TcpProxy

HOUR_S = 3600
LONG = f"--compute_ms_max={HOUR_S * 1000}"
# Nothing but silence can end a problem.
PATIENT = [f"--{flag}_stall_ms={HOUR_S * 1000}" for flag in ("receive", "send")]
PEER_SILENCE_MS = 3000  # a live peer has a quarter of it to answer a ping, on a busy machine too
SILENCE_ALONE = (LONG, f"--peer_silence_ms={PEER_SILENCE_MS}", *PATIENT)
ROWS = 16384  # of long_request: tens of seconds of compute

CLIENT = """
import sys
sys.path[:0] = {paths!r}
import grpc
import wire
from aftermath import long_request, random_request
from attnd.v1 import attention_pb2_grpc
stub = attention_pb2_grpc.AttentionServiceStub(grpc.insecure_channel({address!r}))
print("calling", flush=True)
if {kind!r} == "stream":
    replies = stub.AttendStream(wire.stream_messages(1, random_request(1, 4096, 8, outputs=("weights",))))
    next(replies)
    print("reading", flush=True)
    sys.stdin.read()
else:
    stub.Attend(long_request())
"""


@pytest.mark.parametrize("kind", ["attend", "stream"])
def test_a_client_that_is_killed(kind):
    with AttndServer() as server, leaves_nothing(server):
        paths = [str(ROOT / folder) for folder in ("build/stubs", "tests/conformance", "tests/integration")]
        code = CLIENT.format(paths=paths, address=server.address, kind=kind)
        with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as client:
            assert client.stdout.readline() == b"calling\n"
            if kind == "stream":
                assert client.stdout.readline() == b"reading\n"
            eventually("the server is at work", lambda: memory_reserved(server) > 0)
            client.kill()
        eventually("the server noticed", lambda: memory_reserved(server) == 0)


def through(proxy, server):
    return attention_pb2_grpc.AttentionServiceStub(server.channel(proxy.address))


def start(kind, stub, request):
    if kind == "attend":
        return stub.Attend.future(request, timeout=HOUR_S)
    return stub.AttendStream(wire.stream_messages(1, request), timeout=HOUR_S)


def is_let_go(server, descriptors):
    """The work and the connection, although the client's side of it may still be open."""
    eventually("nothing is reserved", lambda: memory_reserved(server) == 0)
    eventually("nobody holds the connection", lambda: server.descriptors() <= descriptors)


def vanish_mid_compute(server, descriptors, kind, vanish):
    """`vanish(proxy)` in the middle of a call for ROWS. The work ends long before it would have been done."""
    part = cpu_spent(server, lambda: wire.attend(server.stub(), long_request(ROWS // 8)))
    server.close_channels()
    with TcpProxy(server.port) as proxy:
        spent = server.cpu_seconds()
        call = start(kind, through(proxy, server), long_request(ROWS))
        eventually("it computes", lambda: server.cpu_seconds() - spent > 0.2)
        vanish(proxy)
        is_let_go(server, descriptors)
        assert server.cpu_seconds() - spent < 0.7 * 64 * part  # compute is quadratic in rows
        call.cancel()


@pytest.mark.parametrize("kind", wire.CALLS)
def test_a_reset_mid_compute(kind):
    with AttndServer(LONG) as server, leaves_nothing(server) as descriptors:
        vanish_mid_compute(server, descriptors, kind, lambda proxy: proxy.reset())


@pytest.mark.parametrize("kind", wire.CALLS)
def test_silence_mid_compute(kind):
    """After more pings than HTTP/2 allows some peers without data; a peer that answers them is left alone."""

    def live_then_fall_silent(proxy):
        time.sleep(3.2 * PEER_SILENCE_MS / 1000)  # a ping after each three quarters of it
        assert memory_reserved(server) > 0
        proxy.silence()

    with AttndServer(*SILENCE_ALONE, "--threads=1") as server, leaves_nothing(server) as descriptors:
        vanish_mid_compute(server, descriptors, kind, live_then_fall_silent)


def test_silence_mid_piece():
    """A sender of whose fourth piece only a part came."""
    with AttndServer(*SILENCE_ALONE) as server, leaves_nothing(server) as descriptors, TcpProxy(server.port) as proxy:
        sent = queue.SimpleQueue()
        pieces = list(wire.stream_messages(1, random_request(8, 4096, 128), piece_bytes=4 << 20))
        for message in pieces[:4]:
            sent.put(message)
        replies = through(proxy, server).AttendStream(iter(sent.get, None), timeout=HOUR_S)
        try:
            eventually("pieces came", lambda: proxy.bytes_to_server > 12 << 20 and memory_reserved(server) > 0)
            sent.put(pieces[4])
            proxy.silence()
            is_let_go(server, descriptors)
        finally:
            replies.cancel()
            sent.put(None)


def test_silence_with_an_answer_unread():
    """64 MiB of weights, far more than any window of the connection holds."""
    with AttndServer(*SILENCE_ALONE) as server, leaves_nothing(server) as descriptors, TcpProxy(server.port) as proxy:
        replies = start("stream", through(proxy, server), random_request(1, 4096, 8, outputs=("weights",)))
        assert next(replies).HasField("block")
        proxy.silence()
        is_let_go(server, descriptors)
        replies.cancel()
