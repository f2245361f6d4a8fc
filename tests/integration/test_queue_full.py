"""The queue is bounded: what finds it full is told to come again, and what was let in is answered."""

import grpc

import wire
from aftermath import leaves_nothing, long_request
from attnd_server import AttndServer, CALL_SECONDS_MAX


def outcome(call):
    try:
        assert call.result().output.data
        return "answered"
    except grpc.RpcError as error:
        assert error.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
        assert "queue_problems_max" in error.details() and "retry after" in error.details()
        return "refused"


def test_queue_full():
    with AttndServer("--threads=1", "--queue_problems_max=2") as server, leaves_nothing(server):
        stub, request = server.stub(), long_request(1024)
        calls = [stub.Attend.future(request, timeout=CALL_SECONDS_MAX) for _ in range(10)]
        outcomes = [outcome(call) for call in calls]
        assert outcomes.count("answered") >= 2 and outcomes.count("refused") >= 1
        streamed = wire.attend_stream(stub, request)
        assert streamed["output"].shape == (1, 1, 1024, 64)
