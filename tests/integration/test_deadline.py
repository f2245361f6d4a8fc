"""A deadline that passes stops the work, whoever set it."""

import grpc
import pytest

import wire
from aftermath import leaves_nothing, long_request, memory_reserved
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
        whole = cpu_spent(server, lambda: wire.CALLS[call](stub, long_request()))

        def late():
            with pytest.raises((grpc.RpcError, wire.ProblemFailed)) as caught:
                wire.CALLS[call](stub, long_request(), timeout=0.3)
            code = caught.value.code
            assert (code if isinstance(code, grpc.StatusCode) else code()) == grpc.StatusCode.DEADLINE_EXCEEDED

        # What was not computed was not paid for. CPU time, not time: a busy machine does not change it.
        assert cpu_spent(server, late) < 0.7 * whole


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
