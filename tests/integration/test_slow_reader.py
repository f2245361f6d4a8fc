"""A peer that stops reading holds what it holds for send_stall_ms, then its problem ends and everything is freed."""

import grpc
import pytest

import wire
from aftermath import leaves_nothing, memory_reserved, random_request
from attnd_server import AttndServer, CALL_SECONDS_MAX, eventually


def large_answer():
    """64 MiB of weights, far more than any window of the connection holds."""
    return random_request(1, 4096, 8, outputs=("weights",))


def test_a_reader_that_stops():
    with AttndServer("--send_stall_ms=2000") as server, leaves_nothing(server):
        expected = wire.attend(server.stub(), random_request(1, 50, 8))
        replies = server.stub().AttendStream(wire.stream_messages(1, large_answer()), timeout=CALL_SECONDS_MAX)
        assert next(replies).HasField("block")
        # Nothing is read from here on, on this connection.
        eventually("the server gave up on it", lambda: memory_reserved(server) == 0)
        assert wire.attend(server.stub(), random_request(1, 50, 8)).raw == expected.raw
        joiner = wire.BlockJoiner()
        with pytest.raises((grpc.RpcError, wire.ProblemFailed)):  # the stream or its problem ended, and says so
            for reply in replies:
                if reply.HasField("closing"):
                    joiner.close(reply.closing)


def test_memory_does_not_grow_with_what_is_unread():
    """The answer is many times what the server holds for a peer that reads slowly."""
    with AttndServer("--threads=2") as server, leaves_nothing(server):
        wire.attend_stream(server.stub(), large_answer())  # warm: pools and kernels
        before = server.resident_bytes()
        replies = server.stub().AttendStream(wire.stream_messages(1, large_answer()), timeout=CALL_SECONDS_MAX)
        largest, joiner = 0, wire.BlockJoiner()
        for reply in replies:
            largest = max(largest, server.resident_bytes())
            if reply.HasField("block"):
                joiner.blocks.append(reply.block)
            else:
                assert joiner.close(reply.closing)["weights"].shape == (1, 1, 4096, 4096)
        assert largest - before < 48 << 20 or not server.memory_is_its_own()
