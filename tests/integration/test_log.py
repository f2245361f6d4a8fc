"""One line a request, and nothing in it that a peer could have shaped."""

import json
import time

import grpc
import pytest

import wire
from aftermath import computes, good_call, long_request, memory_reserved, random_request
from attnd.v1 import attention_pb2 as pb
from attnd_server import AttndServer, CALL_SECONDS_MAX, eventually

FORGED = 'q\n2026-01-01 forged line\x1b[31m"'


def provoke(server):
    """Puts the forged text wherever a peer can put text."""
    header = next(wire.stream_messages(1, random_request(1, 4, 4)))
    piece = pb.AttendStreamRequest(problem_id=1, piece=pb.TensorPiece(tensor=FORGED, data=b"0000"))
    list(server.stub().AttendStream(iter([header, piece]), timeout=CALL_SECONDS_MAX))
    not_utf8 = b"\x08\x01\x1a\x03\x0a\x01\xff"  # piece.tensor, of which protobuf itself writes a line
    with pytest.raises(grpc.RpcError):
        stream = server.channel().stream_stream("/attnd.v1.AttentionService/AttendStream")
        list(stream(iter([not_utf8]), timeout=CALL_SECONDS_MAX))
    with pytest.raises(grpc.RpcError):
        server.channel().unary_unary(f"/attnd.v1.AttentionService/No%0A{'x' * 20}")(b"", timeout=CALL_SECONDS_MAX)
    server.stub(("grpc.primary_user_agent", "agent\x1b")).Info(pb.InfoRequest(), timeout=CALL_SECONDS_MAX)


@pytest.mark.parametrize("log_format", ["text", "json"])
def test_lines_cannot_be_forged(log_format):
    with AttndServer(f"--log_format={log_format}", "--log_level=debug") as server:
        good_call(server)
        provoke(server)
        good_call(server)
        eventually("the calls are logged", lambda: server.log().count("Attend") >= 4)
        log = server.log_path.read_bytes()
        assert b"\x1b" not in log
        assert not [line for line in log.splitlines() if line.startswith(b"2026-01-01 forged")]
        assert all(32 <= byte < 127 for byte in log.replace(b"\n", b""))
        if log_format == "json":
            for line in log.decode().splitlines():
                assert isinstance(json.loads(line), dict)


def test_one_line_a_request():
    with AttndServer("--log_format=json") as server:
        for _ in range(5):
            wire.attend(server.stub(), random_request(1, 4, 4))
        with pytest.raises(grpc.RpcError):
            wire.attend(server.stub(), pb.AttendRequest())
        # A line is written after its reply, so the last may still be on its way.
        eventually("six calls are logged", lambda: server.log().count('"message":"Attend"') >= 6)
        lines = [line for line in server.log().splitlines() if json.loads(line)["message"] == "Attend"]
        assert len(lines) == 6, server.log()
        assert sum("INVALID_ARGUMENT" in line for line in lines) == 1


def test_a_line_says_how_long_its_bytes_took():
    with AttndServer("--log_format=json") as server:
        header, *pieces = wire.stream_messages(1, random_request(1, 64, 64))

        def slowly():
            yield header
            eventually("the header is there", lambda: memory_reserved(server) > 0)
            time.sleep(0.05)
            yield from pieces

        list(server.stub().AttendStream(slowly(), timeout=CALL_SECONDS_MAX))
        eventually("it is logged", lambda: '"message":"AttendStream"' in server.log().rpartition("\n")[0])
        (line,) = [json.loads(line) for line in server.log().splitlines() if '"message":"AttendStream"' in line]
        assert line["status"] == "OK" and line["receive_ms"] >= 50


def test_a_line_says_what_the_scheduler_decided():
    with AttndServer("--log_format=json", "--threads=1") as server:
        request = random_request(1, 512, 64)
        statistics = wire.attend(server.stub(), request).statistics
        with computes(server, 0.2):
            call = server.stub().Attend.future(long_request(16384), timeout=CALL_SECONDS_MAX)
        call.cancel()
        eventually("both are logged", lambda: server.log().count('"message":"Attend"') >= 2)
        done, stopped = [json.loads(line) for line in server.log().splitlines() if '"message":"Attend"' in line]
        assert done["slices"] == statistics.slices > 0 and done["threads"] == statistics.threads_used == 1
        assert done["memory_bytes"] == statistics.memory_bytes > 3 * 512 * 64 * 4
        assert 0 < done["worked_ms"] <= done["compute_ms"] and "given_back_ms" not in done
        assert stopped["status"] == "CANCELLED" and stopped["given_back_ms"] > 0
        with server.channel() as channel:
            info = type(server.stub())(channel).Info(pb.InfoRequest(), timeout=CALL_SECONDS_MAX)
        assert info.compute_given_back_us == pytest.approx(1000 * stopped["given_back_ms"], abs=2)
