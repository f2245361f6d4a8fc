"""AttendStream computes while tensors still come: rows leave before the last query was sent, with the same bytes."""

import queue

import numpy as np
import pytest

import wire
from aftermath import leaves_nothing, memory_reserved
from attnd.v1 import attention_pb2 as pb
from attnd_server import CALL_SECONDS_MAX, AttndServer, eventually

ORDER = ["options.mask", "k", "v", "q", "x"]
PIECE_BYTES = 1 << 16


def large_request(**options):
    draw = np.random.default_rng(3).standard_normal
    return wire.request(draw((1, 4, 1024, 64)), draw((1, 2, 1024, 64)), draw((1, 2, 1024, 64)), **options)


def in_order(message, **arguments):
    """The header, then pieces in the order in which the server can use them."""
    header, *pieces = wire.stream_messages(1, message, PIECE_BYTES, **arguments)
    return header, sorted(pieces, key=lambda piece: ORDER.index(piece.piece.tensor))


class OpenStream:
    """A stream that sends what it is told to, when it is told to."""

    def __init__(self, server):
        self._sent = queue.SimpleQueue()
        self.replies = server.stub().AttendStream(iter(self._sent.get, None), timeout=CALL_SECONDS_MAX)
        self._joiner = wire.BlockJoiner()

    def send(self, messages):
        for message in messages:
            self._sent.put(message)

    def blocks(self, rows):
        """Reads blocks until so many rows of the output came."""
        while sum(block.rows for block in self._joiner.blocks) < rows:
            reply = next(self.replies)
            assert reply.HasField("block"), reply
            self._joiner.blocks.append(reply.block)

    def closing(self):
        for reply in self.replies:
            if reply.HasField("closing"):
                self._sent.put(None)
                return reply.closing
            self._joiner.blocks.append(reply.block)
        raise AssertionError("no closing came")

    def answer(self):
        return self._joiner.close(self.closing())


@pytest.mark.parametrize("options", [{}, {"causal": True}, {"dtype": "float16"}, {"mask": np.tri(1024) > 0}])
def test_rows_leave_before_the_last_query_is_sent(options):
    with AttndServer() as server, leaves_nothing(server):
        message = large_request(**options)
        expected = wire.attend(server.stub(), message)
        stream = OpenStream(server)
        header, pieces = in_order(message)
        stream.send([header, *pieces[:-1]])
        # Every head but the last has all its queries.
        stream.blocks(3 * 1024)
        stream.send(pieces[-1:])
        answer = stream.answer()
        assert answer.raw == expected.raw
        assert answer.statistics.slices > 0


def test_pieces_in_any_order():
    with AttndServer() as server, leaves_nothing(server):
        message = large_request(outputs=["lse"])
        expected = wire.attend(server.stub(), message)
        for seed in range(4):
            answer = wire.attend_stream(server.stub(), message, piece_bytes=PIECE_BYTES, shuffle=seed)
            assert answer.raw == expected.raw


@pytest.mark.parametrize("fault", ["stall", "twice", "ends", "cancel"])
def test_a_problem_that_computes_already_and_gets_no_further(fault):
    stall = ["--receive_stall_ms=500"] if fault == "stall" else []  # the others have all the time that they need
    with AttndServer(*stall) as server, leaves_nothing(server):
        stream = OpenStream(server)
        header, pieces = in_order(large_request())
        stream.send([header, *pieces[:-1]])
        stream.blocks(3 * 1024)
        if fault == "twice":
            stream.send(pieces[:1])
        elif fault == "ends":
            stream.send([None])
        elif fault == "cancel":
            stream.send([pb.AttendStreamRequest(problem_id=1, cancel=pb.CancelProblem())])
        error = stream.closing().error
        words = {"stall": "receive_stall_ms", "twice": "came before", "ends": "ended early", "cancel": "cancelled"}
        assert words[fault] in error.message
        if fault in ("stall", "ends"):
            assert "q: " in error.message and " bytes came" in error.message
        eventually("its memory is free", lambda: memory_reserved(server) == 0)
