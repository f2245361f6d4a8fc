"""A deadline that passes stops the work, whoever set it."""

import time

import grpc
import pytest

import wire
from aftermath import leaves_nothing, long_request, memory_reserved, random_request
from attnd_server import AttndServer, eventually


def cpu_spent(server, run):
    """CPU seconds of the server from the start of run() until nothing is reserved any more."""
    before = server.cpu_seconds()
    run()
    eventually("the work stopped", lambda: memory_reserved(server) == 0)
    return server.cpu_seconds() - before


@pytest.mark.parametrize("call", wire.CALLS)
def test_a_deadline_mid_compute(call):
    with AttndServer() as server, leaves_nothing(server):
        stub = server.stub()
        start = time.monotonic()
        whole = cpu_spent(server, lambda: wire.CALLS[call](stub, long_request()))
        half_seconds = (time.monotonic() - start) / 2  # too little, and not hopeless

        def late():
            with pytest.raises((grpc.RpcError, wire.ProblemFailed)) as caught:
                wire.CALLS[call](stub, long_request(), timeout=half_seconds)
            code = caught.value.code
            assert (code if isinstance(code, grpc.StatusCode) else code()) == grpc.StatusCode.DEADLINE_EXCEEDED

        # What was not computed was not paid for. CPU time, not time: a busy machine does not change it.
        assert cpu_spent(server, late) < 0.7 * whole


@pytest.mark.parametrize("call", wire.CALLS)
def test_a_deadline_that_cannot_be_met_is_refused_at_once(call):
    """With the predicted time, and without computing."""
    with AttndServer("--compute_ms_max=1000000000") as server, leaves_nothing(server):
        stub, request = server.stub(), random_request(1, 65536, 64, reference=True)  # many minutes
        spent = server.cpu_seconds()
        with pytest.raises((grpc.RpcError, wire.ProblemFailed)) as caught:
            wire.CALLS[call](stub, request, timeout=20)
        error = caught.value
        failed = isinstance(error, wire.ProblemFailed)
        code, text = (error.code, error.text) if failed else (error.code(), error.details())
        assert code == grpc.StatusCode.DEADLINE_EXCEEDED
        assert "predicted" in text
        assert server.cpu_seconds() - spent < 10


@pytest.mark.parametrize("call", wire.CALLS)
def test_a_call_without_a_deadline_gets_one(call):
    with AttndServer("--deadline_default_ms=300") as server, leaves_nothing(server):
        stub = server.stub()
        with pytest.raises((grpc.RpcError, wire.ProblemFailed)) as caught:
            wire.CALLS[call](stub, long_request(), timeout=None)
        error = caught.value
        code = error.code if isinstance(error, wire.ProblemFailed) else error.code()
        assert code == grpc.StatusCode.DEADLINE_EXCEEDED


def test_more_compute_than_allowed_is_refused_or_stopped():
    with AttndServer("--compute_ms_max=100") as server, leaves_nothing(server):
        with pytest.raises(grpc.RpcError) as caught:
            wire.attend(server.stub(), long_request())
        assert caught.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
        assert "compute_ms_max" in caught.value.details()
