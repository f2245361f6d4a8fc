"""A deadline that passes stops the work, whoever set it."""

import json
import time

import grpc
import numpy as np
import pytest

import wire
from aftermath import code_of, endless_request, leaves_nothing, memory_reserved, random_request
from attnd_server import AttndServer, eventually


def projected_request(rows, **options):
    """Eight heads of 4 made of x, and one projection of what they give."""
    draw = np.random.default_rng(rows).standard_normal
    weights = {name: draw((32, 32)) for name in ("w_q", "w_k", "w_v", "w_o")}
    return wire.request(x=draw((1, rows, 32)), projection=wire.projection(8, 8, **weights), **options)


def outcome(call, stub, request, timeout):
    """Code and words of a call that fails."""
    with pytest.raises((grpc.RpcError, wire.ProblemFailed)) as caught:
        wire.CALLS[call](stub, request, timeout=timeout)
    error = caught.value
    return code_of(error), error.text if isinstance(error, wire.ProblemFailed) else error.details()


# Half a second of compute on two cores or more each, and at such a width several times what is predicted from FLOPs:
# half the time that one took is not seen to be hopeless.
PROBLEMS = {
    "tiled": lambda: random_request(8, 16384, 4),
    "tiled, x": lambda: projected_request(16384),
    "reference": lambda: random_request(1, 6144, 4, reference=True, softcap=1.0),
    "reference, x": lambda: projected_request(2048, reference=True, softcap=1.0),
}
STOPPED = ("DEADLINE_EXCEEDED", "CANCELLED")  # the caller's own clock may have been first


@pytest.mark.parametrize("call", wire.CALLS)
@pytest.mark.parametrize("problem", PROBLEMS)
def test_a_deadline_mid_compute(problem, call):
    """After it nothing is held and no core works on: by CPU time, which a busy machine does not stretch.

    How long the problem takes depends on what else the machine does, so the deadline is looked for: sooner where there
    was an answer, later where compute had not begun.
    """
    with AttndServer("--log_format=json") as server, leaves_nothing(server):
        stub, request = server.stub(), PROBLEMS[problem]()
        start, spent = time.monotonic(), server.cpu_seconds()
        wire.CALLS[call](stub, request)
        seconds = (time.monotonic() - start) / 2
        eventually("it rests", lambda: at_rest(server))
        whole = server.cpu_seconds() - spent
        for _ in range(50):
            end, late = try_deadline(server, call, stub, request, seconds)
            if end in STOPPED:
                break
            seconds *= 0.7 if end == "OK" else 1.3
        assert end in STOPPED
        assert late < 0.2 * whole + 0.05  # the rest are ticks of the clock of CPU time


def try_deadline(server, call, stub, request, seconds):
    """How the call ended, "not begun" where it was stopped before its compute; CPU seconds of the server from then."""
    before = len(ends_in_log(server))
    try:
        wire.CALLS[call](stub, request, timeout=seconds)
        answered = True
    except (grpc.RpcError, wire.ProblemFailed) as error:
        answered = False
        assert code_of(error) == grpc.StatusCode.DEADLINE_EXCEEDED
    spent = server.cpu_seconds()
    eventually("it rests", lambda: at_rest(server))
    late, ends = server.cpu_seconds() - spent, ends_in_log(server)[before:]
    if answered:
        return "OK", late
    # A call that had no time to come has no line.
    return (ends[-1]["status"] if ends and ends[-1]["compute_ms"] > 0 else "not begun"), late


def at_rest(server):
    return memory_reserved(server) == 0 and server.rests()


def ends_in_log(server):
    return [json.loads(line) for line in server.log().splitlines() if '"message":"Attend' in line]


@pytest.mark.parametrize("call", wire.CALLS)
def test_a_deadline_that_cannot_be_met_is_refused_at_once(call):
    """With the predicted time, and without computing."""
    with AttndServer("--compute_ms_max=1000000000") as server, leaves_nothing(server):
        stub, request = server.stub(), random_request(1, 65536, 64, reference=True)  # many minutes
        spent = server.cpu_seconds()
        code, text = outcome(call, stub, request, 20)
        assert code == grpc.StatusCode.DEADLINE_EXCEEDED
        assert "predicted" in text
        assert server.cpu_seconds() - spent < 10


@pytest.mark.parametrize("call", wire.CALLS)
def test_a_call_without_a_deadline_gets_one(call):
    with AttndServer("--deadline_default_ms=300") as server, leaves_nothing(server):
        code, _ = outcome(call, server.stub(), endless_request(), None)
        assert code == grpc.StatusCode.DEADLINE_EXCEEDED


def test_more_compute_than_allowed_is_refused_or_stopped():
    with AttndServer("--compute_ms_max=100") as server, leaves_nothing(server):
        with pytest.raises(grpc.RpcError) as caught:
            wire.attend(server.stub(), endless_request())
        assert caught.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
        assert "compute_ms_max" in caught.value.details()
