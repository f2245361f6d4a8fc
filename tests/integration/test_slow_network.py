"""Bytes that come and go in drops: messages cut anywhere are the same messages, and a slow peer holds nobody else."""

import pytest

import wire
from aftermath import good_call, leaves_nothing, random_request
from attnd.v1 import attention_pb2_grpc
from attnd_server import AttndServer
from tcp_proxy import TcpProxy


@pytest.mark.parametrize("dribble", [(1, 0), (7, 0.0005), (1460, 0.01)], ids=["bytes", "drops", "a_slow_line"])
def test_dribble(dribble):
    with AttndServer() as server, leaves_nothing(server), TcpProxy(server.port, dribble) as proxy:
        request = random_request(2, 20 if dribble[0] < 100 else 200, 8, outputs=("weights", "lse"))
        right = wire.attend(server.stub(), request).raw
        with server.channel(proxy.address) as channel:
            slow = attention_pb2_grpc.AttentionServiceStub(channel)
            for call in wire.CALLS.values():
                assert call(slow, request).raw == right
                good_call(server)
