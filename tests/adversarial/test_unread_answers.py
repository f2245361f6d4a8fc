"""A peer that gives the server the largest window there is, asks for much, and reads nothing."""

import json
import signal

import numpy as np
import pytest
from hyperframe import frame as frames

import wire
from aftermath import good_call, memory_reserved, random_request
from attnd_server import AttndServer, eventually
from h2_peer import WINDOW_BYTES_MAX, H2Peer, data_frames, prefixed
from inference import inference_pb2 as infer_pb
from survival import survives

MIB = 1 << 20
HUGE = {
    frames.SettingsFrame.INITIAL_WINDOW_SIZE: WINDOW_BYTES_MAX,
    frames.SettingsFrame.MAX_FRAME_SIZE: (1 << 24) - 1,
}


def greedy(server):
    """Asks for 64 MiB of weights on each of three streams, over a connection whose windows hold them all."""
    peer = H2Peer(server, settings=HUGE)
    peer.read_until(lambda: peer.heard["SettingsFrame"] > 1)
    request = random_request(1, 4096, 1, outputs=("weights",))
    for _ in range(3):
        stream, head = peer.headers("AttendStream")
        peer.send(head)
        sent = b"".join(prefixed(m.SerializeToString()) for m in wire.stream_messages(1, request, piece_bytes=1 << 14))
        peer.send(*data_frames(stream, sent, end_stream=True))
    return peer


def test_it_is_let_go():
    """What waits to be sent is bounded, and gone after send_stall_ms or when the peer's silence is noticed."""
    with AttndServer("--send_stall_ms=1000", "--peer_silence_ms=2000") as server:
        with survives(server, "unread", 60000, 128 * MIB):
            with greedy(server):
                eventually("it is at work", lambda: memory_reserved(server) > 0)
                eventually("it is let go", lambda: memory_reserved(server) == 0)


def infer_message():
    """A ModelInferRequest whose answer has 640 KB."""
    q, k, v = (np.ones(shape, "<f4") for shape in ((1, 1, 400, 8), (1, 1, 8, 8), (1, 1, 8, 400)))
    inputs = [infer_pb.ModelInferRequest.InferInputTensor(name=name, datatype="FP32", shape=tensor.shape)
              for name, tensor in (("q", q), ("k", k), ("v", v))]
    raw = [tensor.tobytes() for tensor in (q, k, v)]
    return infer_pb.ModelInferRequest(model_name="attention", inputs=inputs, raw_input_contents=raw)


def lines_of(server, method):
    whole = server.log().rpartition("\n")[0]  # the last line may just be being written
    return [line for line in map(json.loads, whole.splitlines()) if line["message"] == method]


UNREAD = {  # each with an answer of 640 KB
    "Attend": lambda: [random_request(1, 400, 8, outputs=("weights",))],
    "AttendStream": lambda: wire.stream_messages(1, random_request(1, 400, 8, outputs=("weights",))),
    "/inference.GRPCInferenceService/ModelInfer": lambda: [infer_message()],
    "/inference.GRPCInferenceService/ModelStreamInfer": lambda: [infer_message()],
}


@pytest.mark.parametrize("path", UNREAD)
def test_an_answer_that_nobody_took_is_not_logged_as_given(path):
    """It was computed, and waits behind a window of 64 KiB until send_stall_ms is over."""
    with AttndServer("--send_stall_ms=500", "--log_format=json") as server:
        with H2Peer(server, polite=False) as peer:
            stream, head = peer.headers(path)
            sent = b"".join(prefixed(message.SerializeToString()) for message in UNREAD[path]())
            peer.send(head, *data_frames(stream, sent, end_stream=True))
            (line,) = eventually("its line", lambda: lines_of(server, path.rpartition("/")[2]))
        assert (line["status"], "send_stall_ms" in line["error"]) == ("UNAVAILABLE", True)
        assert line["slices"] > 0  # it was computed
        assert line["send_ms"] >= 500
        good_call(server)


def test_it_does_not_hold_the_end():
    """The process ends within its drain, although gRPC's own shutdown waits for bytes that nobody takes."""
    with AttndServer("--drain_ms=500") as server:
        with greedy(server):
            eventually("it is at work", lambda: memory_reserved(server) > 0)
            server.close_channels()
            server.signal(signal.SIGTERM)
            assert server.wait() == 0


def test_a_window_beyond_the_largest(server):
    """HTTP/2 has no window above 2^31 - 1: the stream or the connection ends."""
    with survives(server, "window overflow", 2000, 32 * MIB), H2Peer(server, settings=HUGE) as peer:
        stream, head = peer.headers("AttendStream")
        peer.send(head, *(frames.WindowUpdateFrame(stream, window_increment=WINDOW_BYTES_MAX) for _ in range(3)))
        peer.send(*data_frames(stream, b"", end_stream=True))
        assert peer.outcome(stream) is not None


def test_windows_that_change_all_the_time(server):
    """INITIAL_WINDOW_SIZE up and down while an answer is on its way moves every stream's window, below zero too."""
    with survives(server, "window changes", 20000, 64 * MIB), H2Peer(server) as peer:
        stream = peer.call("Info", b"")
        sizes = [0, WINDOW_BYTES_MAX, 1, 65535] * 500
        name = frames.SettingsFrame.INITIAL_WINDOW_SIZE
        peer.flood(b"".join(frames.SettingsFrame(0, settings={name: size}).serialize() for size in sizes))
        assert peer.outcome(stream) == 0
