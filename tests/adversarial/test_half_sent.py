"""Messages that begin and never end, and a problem in thousands of tiny pieces."""

import itertools
import queue

import grpc
import numpy as np
import pytest
from hyperframe import frame as frames

import wire
from aftermath import is_served, memory_reserved, random_request
from attnd.v1 import attention_pb2 as pb
from attnd_server import AttndServer, CALL_SECONDS_MAX, eventually
from h2_peer import H2Peer, data_frames, prefixed
from survival import survives

MIB = 1 << 20


@pytest.mark.parametrize("method", ["Attend", "AttendStream", "Plan", "Info"])
@pytest.mark.parametrize("sent_bytes", [0, 3, 40000], ids=["headers", "half_a_prefix", "half_a_message"])
def test_a_message_that_stalls(method, sent_bytes):
    """The peer answers every ping, so that only the call itself is silent. It names no deadline: a unary call ends at
    the server's own, a stream when no message has come for as long as a connection may be idle."""
    end = grpc.StatusCode.UNAVAILABLE if method == "AttendStream" else grpc.StatusCode.DEADLINE_EXCEEDED
    limits = ("--deadline_default_ms=500", "--connection_idle_ms=1000")
    with AttndServer(*limits) as server, survives(server, f"{method} stalls", 20000, 16 * MIB):
        with H2Peer(server) as peer:
            stream, head = peer.headers(method)
            peer.send(head, *data_frames(stream, prefixed(bytes(40000), length=80000)[:sent_bytes]))
            assert peer.outcome(stream) == end.value[0]


def test_a_stalled_stream_with_a_deadline():
    with AttndServer() as server, survives(server, "a stream stalls", 20000, 16 * MIB):
        with H2Peer(server) as peer:
            stream, head = peer.headers("AttendStream", ("grpc-timeout", "500m"))
            peer.send(head, *data_frames(stream, prefixed(bytes(40000), length=80000)))
            assert peer.outcome(stream) == grpc.StatusCode.DEADLINE_EXCEEDED.value[0]


def test_many_half_sent_messages():
    """They fill what gRPC may hold, and stay: others are served again as soon as these are given up."""
    limits = (f"--memory_bytes_max={256 * MIB}", f"--message_bytes_max={16 * MIB}", "--deadline_default_ms=1000")
    with AttndServer(*limits) as server, survives(server, "half-sent messages", 40000, 128 * MIB):
        peers = [H2Peer(server) for _ in range(16)]
        for peer in peers:
            stream, head = peer.headers("Attend")
            peer.send(head)
            peer.send_within_windows(stream, prefixed(bytes(8 * MIB), length=16 * MIB), silent_seconds_max=0.2)
        eventually("calls work while they are held, or soon after", lambda: is_served(server))
        for peer in peers:
            peer.close()
        large = random_request(1, 8192, 64)
        eventually("large calls work", lambda: is_served(server, lambda _: wire.attend(server.stub(), large)))


def test_thousands_of_tiny_pieces():
    """A problem of 3 * 16 KiB in pieces of 4 bytes: the same answer, and only so much memory for their order."""
    with AttndServer() as server:
        request = random_request(1, 64, 64)
        right = wire.attend(server.stub(), request).raw
        pieces = 3 * 64 * 64
        with survives(server, "tiny pieces", 3 * pieces, 32 * MIB):
            assert wire.attend_stream(server.stub(), request, piece_bytes=4).raw == right
            # Scattered beyond what the server keeps track of.
            with pytest.raises(wire.ProblemFailed, match="gaps, allowed 1024"):
                wire.attend_stream(server.stub(), request, piece_bytes=4, shuffle=1)


def test_pieces_that_leave_gaps_everywhere():
    """Every second byte: the most that what came can be scattered. The problem ends."""
    with AttndServer() as server:
        rows = 4096
        header = pb.AttendStreamRequest(problem_id=1)
        for name in "qkv":
            getattr(header.header, name).CopyFrom(pb.Tensor(dtype=pb.DATA_TYPE_FLOAT32, shape=[1, 1, rows, 1]))
        scattered = (
            pb.AttendStreamRequest(problem_id=1, piece=pb.TensorPiece(tensor="q", offset_bytes=at, data=b"\0"))
            for at in range(0, 4 * rows, 2)
        )
        with survives(server, "scattered pieces", 3 * 2 * rows, 32 * MIB):
            sent = queue.SimpleQueue()
            for message in itertools.chain([header], scattered):
                sent.put(message)
            replies = server.stub().AttendStream(iter(sent.get, None), timeout=CALL_SECONDS_MAX)
            error = next(replies).closing.error
            sent.put(None)
            assert error.code == grpc.StatusCode.RESOURCE_EXHAUSTED.value[0] and "gaps" in error.message
            replies.cancel()


def test_ten_thousand_problems_that_are_refused():
    """Each header is wrong; their closings are read, and no memory stays for any of them."""
    with AttndServer() as server, survives(server, "refused problems", 3 * 10_000, 64 * MIB):
        wrong = (pb.AttendStreamRequest(problem_id=number, header=pb.AttendRequest()) for number in range(10_000))
        replies = list(server.stub().AttendStream(wrong, timeout=CALL_SECONDS_MAX))
        assert len(replies) == 10_000 and all(reply.closing.HasField("error") for reply in replies)


def test_closings_that_nobody_reads():
    """The same from a peer that reads none of it: the server stops reading too."""
    with AttndServer("--send_stall_ms=1000") as server, survives(server, "unread closings", 3 * 100_000, 64 * MIB):
        with H2Peer(server, polite=False) as peer:
            stream, head = peer.headers("AttendStream")
            peer.send(head)
            wrong = pb.AttendStreamRequest(problem_id=1, header=pb.AttendRequest()).SerializeToString()
            peer.send_within_windows(stream, prefixed(wrong) * 100_000)
            eventually("nothing is reserved", lambda: memory_reserved(server) == 0)


def test_a_page_table_that_names_one_page_a_million_times():
    """A small message whose problem is large: it is weighed by what it asks for, not by what it sent."""
    with AttndServer("--compute_ms_max=1000") as server, survives(server, "page table", 20000, 128 * MIB):
        page = np.zeros((1, 1, 1, 1))
        request = wire.request(np.zeros((1, 1, 1024, 1)), page, page, page_table=np.zeros((1, 1 << 20)), reference=True)
        with pytest.raises(grpc.RpcError) as refused:
            wire.attend(server.stub(), request)
        assert refused.value.code() in (grpc.StatusCode.RESOURCE_EXHAUSTED, grpc.StatusCode.DEADLINE_EXCEEDED)


def test_empty_messages_on_a_stream():
    """A hundred thousand of no byte: each is refused as it comes, until nobody takes the refusals any more."""
    with AttndServer("--send_stall_ms=1000") as server, survives(server, "empty messages", 3 * 100_000, 64 * MIB):
        with H2Peer(server) as peer:
            stream, head = peer.headers("AttendStream")
            peer.send(head)
            peer.send_within_windows(stream, prefixed(b"") * 100_000)
            peer.send(frames.DataFrame(stream, b"", flags=["END_STREAM"]))
            assert peer.outcome(stream) is not None
