"""Text that a peer sends never makes a line of its own in the log, nor reaches a terminal as an escape code."""

import json

import grpc
import pytest

import wire
from aftermath import random_request
from attnd.v1 import attention_pb2 as pb
from attnd_server import AttndServer, CALL_SECONDS_MAX, eventually
from h2_peer import H2Peer
from survival import survives

MIB = 1 << 20
FORGED = "ok\n2026-01-01T00:00:00 info forged\r\n{\"message\":\"forged\"}\x1b[2J\x1b]0;forged\x07\x00\x7f\x9b31m\"\\"
PLACES = [
    {"path": f"/attnd.v1.AttentionService/{FORGED}"},
    {"te": FORGED},
    {"content_type": f"application/grpc+{FORGED}"},
    {"authority": FORGED},
    {"method": FORGED},
    {"scheme": FORGED},
    {"extra": ("user-agent", FORGED)},
    {"extra": ("x-request-id", FORGED)},
    {"extra": ("traceparent", FORGED)},
    {"extra": ("authorization", f"Bearer {FORGED}")},
    {"extra": ("grpc-timeout", FORGED)},
    {"extra": ("grpc-encoding", FORGED)},
    {"extra": ("x-anything", FORGED)},
    {"extra": (FORGED, "x")},
    {"extra": ("x-anything-bin", FORGED)},
]


def in_metadata(server):
    for place in PLACES:
        with H2Peer(server) as peer:
            place = dict(place)
            extra = [place.pop("extra")] if "extra" in place else []
            stream = peer.call(place.pop("path", "Attend"), b"", *extra, **place)
            assert peer.outcome(stream) is not None, place


def in_messages(server):
    """In every text and every name of a problem."""
    stub = server.stub()
    header = next(wire.stream_messages(1, random_request(1, 4, 4)))
    piece = pb.AttendStreamRequest(problem_id=1, piece=pb.TensorPiece(tensor=FORGED.replace("\x9b", ""), data=b"0"))
    list(stub.AttendStream(iter([header, piece]), timeout=CALL_SECONDS_MAX))
    stream = server.channel().stream_stream("/attnd.v1.AttentionService/AttendStream")
    raw = FORGED.encode("latin1")
    with pytest.raises(grpc.RpcError):
        list(stream(iter([b"\x08\x01\x1a" + bytes([len(raw) + 2, 0x0A, len(raw)]) + raw]), timeout=CALL_SECONDS_MAX))
    unary = server.channel().unary_unary("/attnd.v1.AttentionService/Attend")
    with pytest.raises(grpc.RpcError):
        unary(b"\xfa\x01" + bytes([len(raw)]) + raw, timeout=CALL_SECONDS_MAX)


@pytest.mark.parametrize("log_format", ["text", "json"])
def test_no_line_is_forged(log_format):
    with AttndServer(f"--log_format={log_format}", "--log_level=trace") as server:
        with survives(server, f"log injection, {log_format}", 5000, 32 * MIB):
            in_metadata(server)
            in_messages(server)
        eventually("it is logged", lambda: server.log().count("AttendStream") >= 2)
        log = server.log_path.read_bytes()
        assert all(32 <= byte < 127 or byte == 10 for byte in log)
        for line in log.decode().splitlines():
            assert not line.startswith(("2026-01-01T00:00:00", '{"message":"forged"')), line
            if log_format == "json":
                assert json.loads(line)["message"] != "forged"
            assert len(line) < 8192


def test_a_path_of_8_KiB_is_cut():
    with AttndServer() as server, survives(server, "long path", 5000, 32 * MIB), H2Peer(server) as peer:
        assert peer.outcome(peer.call("/" + "x" * 7000, b"")) not in (0, None)
        assert all(len(line) < 4096 for line in server.log().splitlines())
