"""Bad problems on a stream end themselves: every good one beside them has the bytes it has alone."""

import grpc
import numpy as np

import wire
from aftermath import leaves_nothing, random_request
from attnd.v1 import attention_pb2 as pb
from attnd_server import AttndServer, CALL_SECONDS_MAX


def bad_shape():
    request = random_request(1, 10, 8)
    request.k.shape[3] = 7
    return request


def bad_mask():
    """Found only when the last byte is there."""
    request = random_request(1, 10, 8, mask=np.ones(10))
    request.options.mask.data = bytes([1] * 9 + [2])
    return request


def too_large():
    request = random_request(1, 10, 8)
    for tensor in (request.q, request.k, request.v):
        tensor.shape[2], tensor.data = 1 << 26, b""
    return request


def test_good_and_bad_in_turn():
    with AttndServer() as server, leaves_nothing(server):
        good = random_request(2, 65, 16, outputs=("weights", "lse"))
        expected = wire.attend(server.stub(), good).raw
        bad = [bad_shape(), bad_mask(), too_large(), pb.AttendRequest()]
        answers = wire.attend_many(server.stub(), [problem for wrong in bad for problem in (good, wrong)] + [good])
        for number, answer in enumerate(answers):
            if number % 2 == 0:
                assert answer.raw == expected
            else:
                assert isinstance(answer, wire.ProblemFailed)
                assert answer.code in (grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.RESOURCE_EXHAUSTED)


def test_an_id_in_use_and_messages_for_nobody():
    """A piece and a cancel for ids that never were touch nothing."""
    with AttndServer() as server, leaves_nothing(server):
        good = random_request(2, 65, 16)
        expected = wire.attend(server.stub(), good).raw
        first, second = (list(wire.stream_messages(number, good)) for number in (1, 2))
        stray = [
            pb.AttendStreamRequest(problem_id=9, piece=pb.TensorPiece(tensor="q", data=b"0000")),
            pb.AttendStreamRequest(problem_id=10, cancel=pb.CancelProblem()),
        ]
        sent = [first[0], *stray, *first[1:], *second]
        joiners, closed = {1: wire.BlockJoiner(), 2: wire.BlockJoiner()}, {}
        for reply in server.stub().AttendStream(iter(sent), timeout=CALL_SECONDS_MAX):
            if reply.HasField("block"):
                joiners[reply.problem_id].blocks.append(reply.block)
            else:
                closed[reply.problem_id] = reply.closing
        for number, joiner in joiners.items():
            assert joiner.close(closed[number]).raw == expected


def test_more_problems_than_allowed_on_a_stream():
    """Those beyond problems_in_flight_max are refused by name; those within are answered."""
    with AttndServer("--problems_in_flight_max=2") as server, leaves_nothing(server):
        good = random_request(1, 20, 8)
        expected = wire.attend(server.stub(), good).raw
        headers, pieces = [], []
        for number in range(4):
            header, *rest = wire.stream_messages(number, good)
            headers.append(header)
            pieces += rest
        joiners, closed = [wire.BlockJoiner() for _ in range(4)], {}
        for reply in server.stub().AttendStream(iter(headers + pieces), timeout=CALL_SECONDS_MAX):
            if reply.HasField("block"):
                joiners[reply.problem_id].blocks.append(reply.block)
            elif reply.problem_id not in closed:
                closed[reply.problem_id] = reply.closing
        assert [joiners[number].close(closed[number]).raw for number in (0, 1)] == [expected] * 2
        for number in (2, 3):
            assert closed[number].error.code == grpc.StatusCode.RESOURCE_EXHAUSTED.value[0]
            assert "problems_in_flight_max" in closed[number].error.message
