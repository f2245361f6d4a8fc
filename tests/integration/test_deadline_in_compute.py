"""A deadline that passes stops the work, whoever set it."""

import json
import time

import grpc
import numpy as np
import pytest

import wire
from aftermath import leaves_nothing, long_request, random_request
from attnd.v1 import attention_pb2 as pb
from attnd_server import AttndServer, CALL_SECONDS_MAX, eventually


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
    return (error.code, error.text) if isinstance(error, wire.ProblemFailed) else (error.code(), error.details())


# Half a second of compute on two cores or more each, and at such a width several times what is predicted from FLOPs: a
# deadline that is too short is not seen to be hopeless.
PROBLEMS = {
    "tiled": lambda: random_request(8, 16384, 4),
    "tiled, x": lambda: projected_request(16384),
    "reference": lambda: random_request(1, 6144, 4, reference=True, softcap=1.0),
    "reference, x": lambda: projected_request(2048, reference=True, softcap=1.0),
}
LATE_SECONDS_MAX = 0.5  # ten times what it may take


@pytest.mark.parametrize("call", wire.CALLS)
@pytest.mark.parametrize("problem", PROBLEMS)
def test_a_deadline_mid_compute(problem, call):
    """Soon after it nothing is held and no core works on."""
    with AttndServer("--log_format=json") as server, leaves_nothing(server):
        stub, request = server.stub(), PROBLEMS[problem]()
        start = time.monotonic()
        compute_s = wire.CALLS[call](stub, request).statistics.compute_us / 1e6
        rest_s = time.monotonic() - start - compute_s
        # A server that was started on a busy machine predicts too much, and may refuse the shorter ones as hopeless.
        for share in (0.25, 0.5, 0.75):
            end = stop_by_deadline(server, call, stub, request, rest_s + share * compute_s)
            if end["compute_ms"] > 0:
                break
        assert end["compute_ms"] > 0
        assert end["status"] in ("DEADLINE_EXCEEDED", "CANCELLED")  # the caller's own clock may have been first
        spent = server.cpu_seconds()
        eventually("no unit runs", lambda: server.cpu_seconds() - spent < 0.02, seconds_max=1)


def stop_by_deadline(server, call, stub, request, seconds):
    """Fails in time, and its memory is back in time; its line of the log."""
    start = time.monotonic()
    assert outcome(call, stub, request, seconds)[0] == grpc.StatusCode.DEADLINE_EXCEEDED
    info = server.stub()
    while info.Info(pb.InfoRequest(), timeout=CALL_SECONDS_MAX).memory_bytes_used > 0:
        time.sleep(0.002)
    assert time.monotonic() - start < seconds + LATE_SECONDS_MAX
    *_, end = (json.loads(line) for line in server.log().splitlines() if '"message":"Attend' in line)
    return end


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
        code, _ = outcome(call, server.stub(), PROBLEMS["tiled"](), None)
        assert code == grpc.StatusCode.DEADLINE_EXCEEDED


def test_more_compute_than_allowed_is_refused_or_stopped():
    with AttndServer("--compute_ms_max=100") as server, leaves_nothing(server):
        with pytest.raises(grpc.RpcError) as caught:
            wire.attend(server.stub(), long_request())
        assert caught.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
        assert "compute_ms_max" in caught.value.details()
