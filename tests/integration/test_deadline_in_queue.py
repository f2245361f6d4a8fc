"""A deadline that passes while its problem waits: told so, never started, given back, and no burden to the others.

A problem waits when its connection has had its share. Inside a connection the earliest deadline is first and every unit
gives way, so that long work alone makes nobody wait. Here 32 connections of high priority keep the only worker busy;
one of low priority has a slice of a millisecond in 513, the first at once and the next after half a second each: the
first of its ten problems, which needs a hundred, gets what there are before their deadline; the others never start.
"""

import contextlib
import json

import grpc
import numpy as np
import pytest

import wire
from aftermath import computes, leaves_nothing, random_request
from attnd.v1 import attention_pb2 as pb
from attnd_server import AttndServer, CALL_SECONDS_MAX, eventually

BUSY, WAITING, DEADLINE_MS = 32, 10, 3000
WAITING_ROWS = 100
FLAGS = ("--threads=1", f"--deadline_default_ms={DEADLINE_MS}", "--log_format=json")


def long_rows(rows, priority):
    """Each row is a millisecond or two of reference mode, all in one phase."""
    draw = np.random.default_rng(rows).standard_normal
    keys, values = draw((2, 1, 1, 65536, 1))
    request = wire.request(draw((1, 1, rows, 1)), keys, values, reference=True)
    request.priority = priority
    return request


@contextlib.contextmanager
def busy(server):
    """More than a minute of work on each of BUSY connections, cancelled at the end."""
    request = long_rows(65536, pb.PRIORITY_HIGH)
    with computes(server, 0.3):
        calls = [server.stub().Attend.future(request, timeout=CALL_SECONDS_MAX) for _ in range(BUSY)]
    yield
    assert not any(call.done() for call in calls)
    for call in calls:
        call.cancel()


def ends_in_log(server):
    """The log's lines of problems that wait and were not answered."""
    lines = [json.loads(line) for line in server.log().splitlines()]
    return [line for line in lines if f"Nq{WAITING_ROWS} " in line.get("problem", "") and line["status"] != "OK"]


def test_calls():
    with AttndServer(*FLAGS) as server, leaves_nothing(server):
        request = long_rows(WAITING_ROWS, pb.PRIORITY_LOW)
        patient = random_request(1, 512, 64)
        right = wire.attend(server.stub(), patient).raw
        with busy(server):
            stub = server.stub()
            late = [stub.Attend.future(request, timeout=DEADLINE_MS / 1000) for _ in range(WAITING)]
            # One that has time, behind all of them.
            assert wire.attend(server.stub(), patient).raw == right
            for call in late:
                with pytest.raises(grpc.RpcError) as caught:
                    call.result()
                assert caught.value.code() == grpc.StatusCode.DEADLINE_EXCEEDED
            ends = eventually("each is logged", lambda: len(ends_in_log(server)) == WAITING and ends_in_log(server))
        for end in ends:
            assert end["status"] in ("DEADLINE_EXCEEDED", "CANCELLED")  # the caller's own clock may have been first
        assert sum(end["compute_ms"] == 0 for end in ends) >= WAITING - 2


def test_problems_of_a_stream():
    """Their closings say more: not one slice."""
    with AttndServer(*FLAGS) as server, leaves_nothing(server):
        request = long_rows(WAITING_ROWS, pb.PRIORITY_LOW)
        sent = [part for number in range(WAITING) for part in wire.stream_messages(number, request)]
        with busy(server):
            # A call without a deadline: its problems get the default.
            replies = list(server.stub().AttendStream(iter(sent)))
        closings = {reply.problem_id: reply.closing for reply in replies if reply.HasField("closing")}
        assert len(closings) == WAITING
        for closing in closings.values():
            assert closing.error.code == grpc.StatusCode.DEADLINE_EXCEEDED.value[0]
        unstarted = [each.statistics for each in closings.values() if each.statistics.slices == 0]
        assert len(unstarted) >= WAITING - 2
        for statistics in unstarted:
            assert statistics.compute_us == 0 and statistics.queue_us >= 0.9 * DEADLINE_MS * 1000
