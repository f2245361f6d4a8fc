"""What every fault test ends with: a good call that works, and memory and descriptors back where they were."""

import contextlib

import grpc
import numpy as np

import wire
from attnd.v1 import attention_pb2 as pb
from attnd_server import CALL_SECONDS_MAX, eventually


def random_request(heads, rows, width, **options):
    draw = np.random.default_rng(rows).standard_normal
    return wire.request(*(draw((1, heads, rows, width)) for _ in range(3)), **options)


def long_request(rows=4096):
    """A second or two of one core from few bytes: float64 in plain loops. It grows with the square of the rows."""
    return random_request(1, rows, 64, reference=True)


def endless_request(rows=1 << 16):
    """A minute of one core, or many seconds, from 3 MB: for work that must not be over before the test stops it."""
    return random_request(1, rows, 4, reference=True)


def good_call(server):
    """good_answer on a connection of its own."""
    with server.channel() as channel:
        good_answer(type(server.stub())(channel))


def good_answer(stub):
    """The lesson's three tokens, by either call."""
    q, k, v = (
        np.array(t).reshape(1, 1, -1, 4)
        for t in (
            [1, 0, 0.5, 1],
            [[1, 0, 0.8, 1], [0, 1, 0.2, 0], [0.2, 0.2, 0.4, 0.1]],
            [[0.9, 0.1, 0.7, 0.8], [0.1, 0.9, 0.2, 0.1], [0.3, 0.3, 0.5, 0.2]],
        )
    )
    answer = wire.attend(stub, wire.request(q, k, v))
    assert np.round(answer["output"].ravel().astype(float), 4).tolist() == [0.6151, 0.2941, 0.5616, 0.5337]
    streamed = wire.attend_stream(stub, wire.request(q, k, v))
    assert streamed.raw == answer.raw


# No memory or no place, also for a connection while others are still closing; gRPC ends what its own share cannot hold.
NO_ROOM = (grpc.StatusCode.RESOURCE_EXHAUSTED, grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED)


def code_of(error):
    return error.code if isinstance(error, wire.ProblemFailed) else error.code()


def is_served(server, call=good_call):
    """Whether it answers, or has no room."""
    try:
        call(server)
    except (grpc.RpcError, wire.ProblemFailed) as refused:
        if code_of(refused) not in NO_ROOM:
            raise
        return False
    finally:
        server.close_channels()
    return True


def memory_reserved(server):
    """Waits for a place where others hold all: their connections may still be closing."""
    with server.channel() as channel:
        stub = type(server.stub())(channel)
        return stub.Info(pb.InfoRequest(), timeout=CALL_SECONDS_MAX, wait_for_ready=True).memory_bytes_used


@contextlib.contextmanager
def computes(server, cpu_seconds):
    """Around the start of a call: goes on when the server has computed for so long since."""
    before = server.cpu_seconds()
    yield
    eventually("it computes", lambda: server.cpu_seconds() - before > cpu_seconds)


def cpu_spent(server, run):
    """CPU seconds of the server from the start of run() until nothing is reserved any more."""
    before = server.cpu_seconds()
    run()
    eventually("nothing is reserved", lambda: memory_reserved(server) == 0)
    return server.cpu_seconds() - before


@contextlib.contextmanager
def leaves_nothing(server):
    """Around a fault. Reserved memory must come back to nothing; descriptors to what they were, which it yields."""
    good_call(server)
    server.close_channels()
    eventually("idle before the fault", lambda: memory_reserved(server) == 0)
    server.close_channels()
    descriptors = server.descriptors()
    yield descriptors
    eventually("reserved memory is given back", lambda: memory_reserved(server) == 0)
    eventually("a call finds a place", lambda: is_served(server))
    eventually("descriptors are given back", lambda: server.descriptors() <= descriptors)
    assert server.is_alive()
