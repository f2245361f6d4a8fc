"""A caller who changes their mind: the work stops, and only that work."""

import queue

import grpc
import pytest

import wire
from aftermath import computes, endless_request, leaves_nothing, long_request, memory_reserved, random_request
from attnd.v1 import attention_pb2 as pb
from attnd_server import AttndServer, CALL_SECONDS_MAX, eventually


@pytest.fixture
def server():
    with AttndServer() as running:
        yield running


def test_a_cancelled_call(server):
    """Of sixteen times the rows, the compute is 256 times as much: a caller that is held up still cancels in time."""
    with leaves_nothing(server):
        before = server.cpu_seconds()
        wire.attend(server.stub(), long_request(1024))
        whole, before = 256 * (server.cpu_seconds() - before), server.cpu_seconds()
        call = server.stub().Attend.future(long_request(16 * 1024), timeout=CALL_SECONDS_MAX)
        eventually("it computes", lambda: server.cpu_seconds() - before > 0.01 * whole)
        call.cancel()
        with pytest.raises(grpc.FutureCancelledError):
            call.result()
        eventually("the work stopped", lambda: memory_reserved(server) == 0 and server.rests())
        assert server.cpu_seconds() - before < 0.7 * whole


def test_many_calls_cancelled_at_once(server):
    with leaves_nothing(server):
        stub, request = server.stub(), endless_request(1 << 15)
        calls = [stub.Attend.future(request, timeout=CALL_SECONDS_MAX) for _ in range(50)]
        assert all([call.cancel() for call in calls])
        for call in calls:
            with pytest.raises(grpc.FutureCancelledError):
                call.result()


def test_one_problem_of_a_stream(server):
    """CancelProblem ends its problem with CANCELLED; its neighbour is answered with the bytes it has alone."""
    with leaves_nothing(server):
        neighbour = random_request(2, 100, 32)
        expected = wire.attend(server.stub(), neighbour)
        sent = queue.SimpleQueue()
        for message in wire.stream_messages(1, endless_request()):
            sent.put(message)
        with computes(server, 0.2):
            replies = server.stub().AttendStream(iter(sent.get, None), timeout=CALL_SECONDS_MAX)
        sent.put(pb.AttendStreamRequest(problem_id=1, cancel=pb.CancelProblem()))
        for message in wire.stream_messages(2, neighbour):
            sent.put(message)
        sent.put(None)
        joiners, closed = {1: wire.BlockJoiner(), 2: wire.BlockJoiner()}, {}
        for reply in replies:
            if reply.HasField("block"):
                joiners[reply.problem_id].blocks.append(reply.block)
            else:
                closed[reply.problem_id] = reply.closing
        assert closed[1].error.code == grpc.StatusCode.CANCELLED.value[0]
        assert joiners[2].close(closed[2]).raw == expected.raw


def test_a_cancelled_stream(server):
    with leaves_nothing(server):
        sent = queue.SimpleQueue()
        for message in wire.stream_messages(1, endless_request()):
            sent.put(message)
        replies = server.stub().AttendStream(iter(sent.get, None), timeout=CALL_SECONDS_MAX)
        eventually("it was admitted", lambda: memory_reserved(server) > 0)
        replies.cancel()
        sent.put(None)
        with pytest.raises(grpc.RpcError):
            list(replies)
