"""A peer that opens a problem and stops sending: that problem ends after receive_stall_ms, the stream lives on."""

import queue

import pytest

import wire
from aftermath import leaves_nothing, memory_reserved, random_request
from attnd_server import AttndServer, CALL_SECONDS_MAX, eventually


# Long enough to be seen at it, and for the next problem's pieces to come in time on a busy machine.
STALL_MS = 3000


@pytest.mark.parametrize("pieces_sent", [0, 1, 5])
def test_a_sender_that_stops(pieces_sent):
    with AttndServer(f"--receive_stall_ms={STALL_MS}") as server, leaves_nothing(server):
        good = random_request(2, 100, 32)
        expected = wire.attend(server.stub(), good)
        sent = queue.SimpleQueue()
        messages = list(wire.stream_messages(1, random_request(1, 1000, 64), piece_bytes=1 << 15))
        for message in messages[: 1 + pieces_sent]:
            sent.put(message)
        replies = server.stub().AttendStream(iter(sent.get, None), timeout=CALL_SECONDS_MAX)
        eventually("it was admitted", lambda: memory_reserved(server) > 0)
        first = next(replies)
        assert first.problem_id == 1 and first.closing.HasField("error")
        assert "receive_stall_ms" in first.closing.error.message
        eventually("its memory is free", lambda: memory_reserved(server) == 0)
        # Pieces that come too late are for nobody, and the next problem is answered.
        for message in [*messages[1 + pieces_sent : 3 + pieces_sent], *wire.stream_messages(2, good)]:
            sent.put(message)
        sent.put(None)
        joiner, answer = wire.BlockJoiner(), None
        for reply in replies:
            if reply.problem_id == 2 and reply.HasField("block"):
                joiner.blocks.append(reply.block)
            elif reply.problem_id == 2:
                answer = joiner.close(reply.closing)
        assert answer is not None and answer.raw == expected.raw


def test_a_stream_that_ends_in_the_middle_of_a_problem():
    with AttndServer() as server, leaves_nothing(server):
        messages = list(wire.stream_messages(1, random_request(1, 100, 64), piece_bytes=1 << 12))[:3]
        replies = list(server.stub().AttendStream(iter(messages), timeout=CALL_SECONDS_MAX))
        assert len(replies) == 1 and replies[0].closing.HasField("error")
