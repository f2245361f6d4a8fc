"""Many calls of one client do not slow another beyond its share, and priorities are shares too."""

import wire
from aftermath import computes, leaves_nothing, random_request
from attnd.v1 import attention_pb2 as pb
from attnd_server import AttndServer, CALL_SECONDS_MAX

CALLS = 30
# 50 ms of compute each, and quick to send: what a caller needs between two calls is little beside it.
ROWS = 768


def flood(server, request):
    stub = server.stub()
    with computes(server, 0.02):
        return [stub.Attend.future(request, timeout=CALL_SECONDS_MAX) for _ in range(CALLS)]


def done(calls):
    return sum(call.done() for call in calls)


def test_flood_and_trickle():
    with AttndServer("--threads=1") as server, leaves_nothing(server):
        request = random_request(1, ROWS, 64, reference=True)
        calls, trickle = flood(server, request), server.stub()
        wire.attend(trickle, request)  # connects
        before = done(calls)
        for _ in range(5):
            wire.attend(trickle, request)
        # Half of the time is the other client's, so that about as many of the flood were answered meanwhile.
        assert done(calls) - before < CALLS / 2
        for call in calls:
            assert call.result().output.data


def test_a_low_flood_and_a_high_trickle():
    with AttndServer("--threads=1") as server, leaves_nothing(server):
        low, high = (random_request(1, ROWS, 64, reference=True) for _ in range(2))
        low.priority, high.priority = pb.PRIORITY_LOW, pb.PRIORITY_HIGH
        calls, trickle = flood(server, low), server.stub()
        wire.attend(trickle, high)  # connects
        before = done(calls)
        for _ in range(10):
            wire.attend(trickle, high)
        assert done(calls) - before < CALLS / 2  # a sixteenth of ten, and what the waiting between two calls leaves
        for call in calls:
            call.result()
