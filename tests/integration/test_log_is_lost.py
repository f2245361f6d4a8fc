"""A full disk under the log, and a log that nobody reads any more: requests are served all the same."""

import os

import grpc
import pytest

import wire
from aftermath import leaves_nothing, random_request
from attnd_server import AttndServer


def a_full_disk():
    return os.open("/dev/full", os.O_WRONLY)


def a_pipe_whose_reader_has_gone():
    reader, writer = os.pipe()
    os.close(reader)
    return writer


@pytest.mark.parametrize("make", [a_full_disk, a_pipe_whose_reader_has_gone])
@pytest.mark.parametrize("log_format", ["text", "json"])
def test_requests_are_served(make, log_format):
    target = make()
    try:
        with AttndServer(f"--log_format={log_format}", "--log_level=trace", stderr=target) as server:
            with leaves_nothing(server):
                request = random_request(2, 50, 16)
                right = wire.attend(server.stub(), request).raw
                for _ in range(200):
                    assert wire.attend(server.stub(), request).raw == right
                    server.close_channels()
                with pytest.raises(grpc.RpcError):
                    server.channel().unary_unary("/attnd.v1.AttentionService/Nothing")(b"", timeout=60)
    finally:
        os.close(target)
