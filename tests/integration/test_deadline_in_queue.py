"""A deadline that passes while its problem waits: told so, never started, given back, and no burden to the others.

What makes a problem wait is a worker that is not free. Between two slices of a millisecond the queue takes a new
connection first, and inside a connection the earliest deadline, so a deadline long enough to be met is met. Every
worker is therefore given a unit that does not give way: a row of reference mode over millions of keys.
"""

import json

import grpc
import numpy as np
import pytest

import wire
from aftermath import leaves_nothing, memory_reserved, random_request
from attnd_server import AttndServer, CALL_SECONDS_MAX, eventually

THREADS, WAITING, DEADLINE_MS = 2, 10, 150
FLAGS = (f"--threads={THREADS}", f"--deadline_default_ms={DEADLINE_MS}", "--log_format=json")


def occupy(server):
    """A call that has every worker at a unit of its own, of the better part of a second at least."""
    keys = np.tile(np.random.default_rng(1).standard_normal(1 << 16), 1 << 8).reshape(1, 1, -1, 1)
    rows = np.ones((1, 1, THREADS, 1))
    request = wire.request(rows, keys, keys, reference=True, dtype="float16", softcap=1.0)
    call = server.stub().Attend.future(request, timeout=CALL_SECONDS_MAX)
    eventually("its message is there", lambda: memory_reserved(server) > 2 * keys.size * 2)
    spent = server.cpu_seconds()
    eventually("it computes", lambda: server.cpu_seconds() - spent > 0.05)
    return call


def ends_in_log(server):
    """The log's lines of problems that were not answered. A caller's own clock may have been first, and cancelled."""
    lines = [json.loads(line) for line in server.log().splitlines()]
    return [line for line in lines if line.get("status") in ("DEADLINE_EXCEEDED", "CANCELLED")]


@pytest.mark.parametrize("own_connections", [False, True])
def test_calls(own_connections):
    with AttndServer(*FLAGS) as server, leaves_nothing(server):
        request = random_request(2, 2048, 64)
        right = wire.attend(server.stub(), request)
        working = occupy(server)
        stubs = [server.stub() for _ in range(WAITING if own_connections else 1)] * WAITING
        late = [stub.Attend.future(request, timeout=DEADLINE_MS / 1000) for stub in stubs[:WAITING]]
        # A problem that has time, behind all of them.
        patient = server.stub().Attend.future(request, timeout=CALL_SECONDS_MAX)
        for call in late:
            with pytest.raises(grpc.RpcError) as caught:
                call.result()
            assert caught.value.code() == grpc.StatusCode.DEADLINE_EXCEEDED
        assert patient.result().output.data == right.raw["output"]
        assert working.result().output.data
        ends = eventually("each is logged", lambda: len(ends_in_log(server)) == WAITING and ends_in_log(server))
        for end in ends:
            assert end["compute_ms"] == 0 and end["queue_ms"] >= DEADLINE_MS


def test_problems_of_a_stream():
    """Their closings say more: not one slice."""
    with AttndServer(*FLAGS) as server, leaves_nothing(server):
        request = random_request(2, 2048, 64)
        working = occupy(server)
        sent = [part for number in range(WAITING) for part in wire.stream_messages(number, request)]
        closings = {}
        for reply in server.stub().AttendStream(iter(sent)):  # a call without a deadline: problems get the default
            assert reply.HasField("closing")
            closings[reply.problem_id] = reply.closing
        assert len(closings) == WAITING
        for closing in closings.values():
            assert closing.error.code == grpc.StatusCode.DEADLINE_EXCEEDED.value[0]
            assert closing.statistics.slices == closing.statistics.compute_us == 0
            assert closing.statistics.queue_us >= DEADLINE_MS * 1000
        assert working.result().output.data
