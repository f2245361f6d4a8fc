"""Bytes are reserved before they are allocated: what never fits, what does not fit now, what costs only its refusal."""

import queue
import threading

import grpc
import pytest

import wire
from aftermath import leaves_nothing, memory_reserved, random_request
from attnd.v1 import attention_pb2 as pb
from attnd_server import AttndServer, CALL_SECONDS_MAX, eventually
from mixed_load import Load, STALL_MS

MEMORY_BYTES = 256 << 20
REST_BYTES = 64 << 20  # what is no problem's and not gRPC's
MIX_SECONDS = 15


def header_only(batch, heads, rows, width, outputs=()):
    """A problem by its shapes alone, as a stream's header."""
    header = pb.AttendRequest(outputs=[wire.OUTPUTS[name] for name in outputs])
    for name in "qkv":
        getattr(header, name).CopyFrom(pb.Tensor(dtype=pb.DATA_TYPE_FLOAT32, shape=[batch, heads, rows, width]))
    return pb.AttendStreamRequest(problem_id=1, header=header)


def first_error(server, message):
    replies = list(server.stub().AttendStream(iter([message]), timeout=CALL_SECONDS_MAX))
    assert len(replies) == 1 and replies[0].closing.HasField("error")
    return replies[0].closing.error


def test_what_can_never_fit():
    """The amount needed, the amount allowed, the flag, and no invitation to come again."""
    with AttndServer(f"--memory_bytes_max={MEMORY_BYTES}", "--message_bytes_max=67108864") as server:
        with leaves_nothing(server):
            error = first_error(server, header_only(1, 1, 1 << 20, 64))
            assert error.code == grpc.StatusCode.RESOURCE_EXHAUSTED.value[0]
            for word in ("needed", "allowed", "memory_bytes_max"):
                assert word in error.message
            assert "retry" not in error.message


def test_what_does_not_fit_now():
    """An open problem holds its reservation; the next one is told to come again, and then is let in."""
    with AttndServer(f"--memory_bytes_max={MEMORY_BYTES}", "--message_bytes_max=67108864", "--threads=1") as server:
        with leaves_nothing(server):
            rows = 80_000  # 3 x 20 MB come in, as much again is packed and held
            sent = queue.SimpleQueue()
            sent.put(header_only(1, 1, rows, 64))
            replies = server.stub().AttendStream(iter(sent.get, None), timeout=CALL_SECONDS_MAX)
            eventually("the first is admitted", lambda: memory_reserved(server) > 3 * rows * 64 * 4)
            error = first_error(server, header_only(1, 1, rows, 64))
            assert error.code == grpc.StatusCode.RESOURCE_EXHAUSTED.value[0]
            assert "retry after" in error.message and "memory_bytes_max" in error.message
            sent.put(pb.AttendStreamRequest(problem_id=1, cancel=pb.CancelProblem()))
            assert next(replies).closing.error.code == grpc.StatusCode.CANCELLED.value[0]
            sent.put(None)
            assert not list(replies)
            eventually("its memory is free", lambda: memory_reserved(server) == 0)
            assert wire.attend_stream(server.stub(), random_request(1, 2000, 64))["output"].shape == (1, 1, 2000, 64)


@pytest.mark.parametrize(
    "shape, outputs",
    [
        ((1, 1, 1 << 24, 1), ()),
        ((8, 16, 131_072, 64), ("weights",)),
        ((1 << 40, 1, 0, 64), ()),
        ((1, 1 << 20, 1 << 20, 1 << 20), ()),
        ((1 << 30, 1 << 30, 1 << 30, 1), ()),
    ],
)
def test_giants_cost_their_refusal_only(shape, outputs):
    with AttndServer() as server, leaves_nothing(server):
        before = server.resident_bytes()
        for _ in range(20):
            error = first_error(server, header_only(*shape, outputs))
            assert error.code in (
                grpc.StatusCode.RESOURCE_EXHAUSTED.value[0],
                grpc.StatusCode.INVALID_ARGUMENT.value[0],
            )
        assert server.resident_bytes() - before < 16 << 20 or not server.memory_is_its_own()


def test_a_message_over_the_limit():
    with AttndServer("--message_bytes_max=1048576") as server, leaves_nothing(server):
        with pytest.raises(grpc.RpcError) as caught:
            wire.attend(server.stub(), random_request(1, 4096, 64))
        assert caught.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED


def test_an_answer_too_large_for_one_message_is_refused_before_it_is_made():
    with AttndServer("--message_bytes_max=4194304") as server, leaves_nothing(server):
        request = random_request(1, 2048, 8, outputs=("weights",))
        with pytest.raises(grpc.RpcError) as caught:
            wire.attend(server.stub(), request)
        assert caught.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
        assert "AttendStream" in caught.value.details()
        assert wire.attend_stream(server.stub(), request)["weights"].shape == (1, 1, 2048, 2048)


def test_small_fields_without_end():
    """Lists are bounded by an eighth of message_bytes_max, 1 MiB here; on a stream they end their problem alone."""
    request = random_request(1, 4, 4)
    giant = pb.AttendRequest()
    giant.CopyFrom(request)
    giant.options.q_len.extend([1] * (2 << 20))
    with AttndServer("--message_bytes_max=8388608") as server, leaves_nothing(server):
        with pytest.raises(grpc.RpcError) as caught:
            wire.attend(server.stub(), giant)
        assert caught.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
        assert "1048576 allowed" in caught.value.details() and "message_bytes_max" in caught.value.details()
        messages = [pb.AttendStreamRequest(problem_id=5, header=giant), *wire.stream_messages(6, request)]
        replies = list(server.stub().AttendStream(iter(messages), timeout=CALL_SECONDS_MAX))
        closings = {reply.problem_id: reply.closing for reply in replies if reply.HasField("closing")}
        assert closings[5].error.code == grpc.StatusCode.RESOURCE_EXHAUSTED.value[0]
        assert "message_bytes_max" in closings[5].error.message
        assert not closings[6].HasField("error")


def test_everything_at_once():
    """Resident memory stays under the limit and a stated rest for code, stacks and the allocator's own."""
    flags = (f"--memory_bytes_max={MEMORY_BYTES}", f"--send_stall_ms={STALL_MS}", f"--receive_stall_ms={STALL_MS}")
    with AttndServer(*flags, "--message_bytes_max=67108864", "--log_level=warning") as server, leaves_nothing(server):
        load, samples, over = Load(server), [], threading.Event()

        def sample():
            while not over.wait(0.02):
                samples.append(server.resident_bytes())

        sampler = threading.Thread(target=sample)
        sampler.start()
        load.run(MIX_SECONDS, CALL_SECONDS_MAX)
        over.set()
        sampler.join()
        peak = max(*samples, server.peak_resident_bytes())
        print(f"answered {dict(load.answered)}, refused {dict(load.refused)}, faults {dict(load.faults)}")
        print(f"resident {max(samples) >> 20} MiB in samples, {peak >> 20} MiB at most")
        assert not load.failures
        assert load.each_happened()
        assert peak <= MEMORY_BYTES + REST_BYTES
