"""Streams that are open: a connection has its share of them, and one that nothing is said on ends."""

import contextlib
import queue

import grpc
import pytest

from aftermath import leaves_nothing, random_request
from attnd.v1 import attention_pb2 as pb
from attnd_server import CALL_SECONDS_MAX, AttndServer


class OpenStream:
    """A stream that has answered, and stays open until the end of a `with`."""

    def __init__(self, stub):
        self._to_send = queue.SimpleQueue()
        self.replies = stub.AttendStream(iter(self._to_send.get, None), timeout=CALL_SECONDS_MAX)
        self.ask(0)

    def ask(self, problem_id):
        self._to_send.put(pb.AttendStreamRequest(problem_id=problem_id, header=random_request(1, 4, 8)))
        return [next(self.replies), next(self.replies)]

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._to_send.put(None)
        self.replies.cancel()


def test_a_connection_has_its_share():
    with AttndServer("--streams_max=8") as server, leaves_nothing(server):
        with contextlib.ExitStack() as streams:
            one, other = server.stub(), server.stub()
            held = [streams.enter_context(OpenStream(one)) for _ in range(4)]
            with pytest.raises(grpc.RpcError, match="of this connection: allowed 4 .connection_percent_max") as refused:
                OpenStream(one)
            assert refused.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
            held += [streams.enter_context(OpenStream(other)) for _ in range(4)]
            with pytest.raises(grpc.RpcError, match="open streams: allowed 8 .streams_max"):
                OpenStream(server.stub())
            for stream in held:
                assert stream.ask(1)[1].closing.statistics.flops > 0


def test_a_stream_on_which_nothing_is_said_ends():
    with AttndServer("--connection_idle_ms=3000") as server, leaves_nothing(server):
        with OpenStream(server.stub()) as stream:
            with pytest.raises(grpc.RpcError, match="no message for 3000 ms .connection_idle_ms") as ended:
                next(stream.replies)
            assert ended.value.code() == grpc.StatusCode.UNAVAILABLE
