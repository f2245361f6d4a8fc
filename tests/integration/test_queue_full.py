"""The queue is bounded: what finds it full is told to come again, and what was let in is answered. One connection fills
no more than its share of it."""

import grpc
import pytest

import wire
from aftermath import good_call, leaves_nothing, long_request
from attnd_server import AttndServer, CALL_SECONDS_MAX


def outcome(call, flag):
    try:
        assert call.result().output.data
        return "answered"
    except grpc.RpcError as error:
        assert error.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
        assert flag in error.details() and "retry after" in error.details()
        return "refused"


@pytest.mark.parametrize(
    "flag, arguments",
    [
        ("queue_problems_max", ["--queue_problems_max=2", "--connection_percent_max=100"]),
        ("queue_bytes_max", ["--queue_bytes_max=3000000", "--connection_percent_max=100"]),  # of 1.3 MB each
        ("connection_percent_max", ["--queue_problems_max=4"]),
        ("connection_percent_max", ["--queue_bytes_max=6000000"]),
    ],
)
def test_queue_full(flag, arguments):
    with AttndServer("--threads=1", *arguments) as server, leaves_nothing(server):
        stub, request = server.stub(), long_request(1024)
        calls = [stub.Attend.future(request, timeout=CALL_SECONDS_MAX) for _ in range(10)]
        outcomes = [outcome(call, flag) for call in calls]
        assert outcomes.count("answered") >= 2 and outcomes.count("refused") >= 1
        streamed = wire.attend_stream(stub, request)
        assert streamed["output"].shape == (1, 1, 1024, 64)


def test_one_connection_leaves_room_for_others():
    with AttndServer("--threads=1", "--queue_problems_max=4") as server, leaves_nothing(server):
        stub = server.stub()  # one connection
        calls = [stub.Attend.future(long_request(1024), timeout=CALL_SECONDS_MAX) for _ in range(10)]
        while not any(call.done() for call in calls):  # the first refusal
            good_call(server)
        good_call(server)
        assert all(outcome(call, "connection_percent_max") for call in calls)
