"""TCP and a Unix socket at once: the same server, the same bytes."""

import pathlib
import tempfile

import pytest

import wire
from aftermath import good_call, random_request
from attnd.v1 import attention_pb2_grpc
from attnd_server import AttndServer


@pytest.fixture
def socket_path():
    with tempfile.TemporaryDirectory(prefix="attnd-test-") as folder:
        yield pathlib.Path(folder) / "socket"


def test_both_listeners(socket_path):
    with AttndServer(listen=f"127.0.0.1:0,unix:{socket_path}") as server:
        request = random_request(2, 100, 32)
        over_tcp = wire.attend(server.stub(), request)
        over_unix = attention_pb2_grpc.AttentionServiceStub(server.channel(f"unix:{socket_path}"))
        for call in wire.CALLS.values():
            assert call(over_unix, request).raw == over_tcp.raw
        good_call(server)


def test_a_socket_file_left_behind(socket_path):
    """A server that was killed leaves its socket file; the next one starts all the same."""
    first = AttndServer(listen=f"127.0.0.1:0,unix:{socket_path}")
    first.kill()
    with AttndServer(listen=f"127.0.0.1:0,unix:{socket_path}") as server:
        stub = attention_pb2_grpc.AttentionServiceStub(server.channel(f"unix:{socket_path}"))
        assert wire.attend(stub, random_request(1, 5, 4))["output"].shape == (1, 1, 5, 4)
        good_call(server)
