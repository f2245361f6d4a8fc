"""Malformed requests through the wire: what each is refused with. A good call must work after every one of them."""

import grpc
import numpy as np
import pytest

import wire
from attnd.v1 import attention_pb2 as pb
from attnd_server import CALL_SECONDS_MAX

INVALID, TOO_MUCH = grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.RESOURCE_EXHAUSTED


def good():
    """B = 2, Hq = 4, Hkv = 2, Nq = 3, Nk = 5, d_k = 4, d_v = 6."""
    rng = np.random.default_rng(31)
    return wire.request(
        rng.standard_normal((2, 4, 3, 4)),
        rng.standard_normal((2, 2, 5, 4)),
        rng.standard_normal((2, 2, 5, 6)),
        outputs=("weights",),
    )


def good_x():
    """B = 2, N = 3, d_model = 8, Hq = 4, Hkv = 2, d_k = 4, d_v = 6."""
    rng = np.random.default_rng(32)
    return wire.request(
        x=rng.standard_normal((2, 3, 8)),
        outputs=("weights",),
        projection=wire.projection(
            4,
            2,
            w_q=rng.standard_normal((8, 16)),
            w_k=rng.standard_normal((8, 8)),
            w_v=rng.standard_normal((8, 12)),
            w_o=rng.standard_normal((24, 5)),
            b_q=np.zeros(16),
            b_o=np.zeros(5),
        ),
    )


def reshaped(name, *shape, dtype="float32"):
    """Gives a tensor another shape, with as many bytes as that shape has (none where that would be too many)."""

    def change(request):
        target = request
        for part in name.split("."):
            target = getattr(target, part)
        count = int(np.prod([abs(int(n)) for n in shape], dtype=object))
        data = wire.to_bits(np.zeros(count), dtype).tobytes() if count < 1 << 20 else b""
        target.CopyFrom(pb.Tensor(dtype=wire.DTYPES[dtype], shape=shape, data=data))

    return change


def options(**values):
    def change(request):
        for name, value in values.items():
            if isinstance(value, list):
                getattr(request.options, name).extend(value)
            else:
                setattr(request.options, name, value)

    return change


def changed(statement):
    """The change as a line of Python on `r`, the request; `raw` merges bytes as another encoder would send them."""

    def change(request):
        exec(statement, {"r": request, "pb": pb, "raw": lambda message, data: message.MergeFromString(data)})

    return change


def rotary(**values):
    def change(request):
        request.options.rotary.CopyFrom(pb.Rotary(**{"style": pb.ROTARY_STYLE_HALF, "rotary_dim": 4, **values}))
        request.options.mode = pb.COMPUTE_MODE_REFERENCE

    return change


# Name: (starting request, change, code, what the text must hold: the field, what came, what was expected).
TABLE = {
    # Presence.
    "no q": (good, changed("r.ClearField('q')"), INVALID, ["q", "missing"]),
    "no k": (good, changed("r.ClearField('k')"), INVALID, ["k", "missing"]),
    "no v": (good, changed("r.ClearField('v')"), INVALID, ["v", "missing"]),
    "nothing": (pb.AttendRequest, lambda _: None, INVALID, ["q", "missing"]),
    "x beside q": (good_x, reshaped("q", 2, 4, 3, 4), INVALID, ["q", "x"]),
    "x without projection": (good_x, changed("r.ClearField('projection')"), INVALID, ["projection", "missing"]),
    "projection without x": (good, changed("r.projection.q_heads = 1"), INVALID, ["projection", "x"]),
    "no w_k": (good_x, changed("r.projection.ClearField('w_k')"), INVALID, ["projection.w_k", "missing"]),
    "b_o without w_o": (good_x, changed("r.projection.ClearField('w_o')"), INVALID, ["projection.b_o", "w_o"]),
    # Types.
    "no dtype": (good, changed("r.q.dtype = 0"), INVALID, ["q.dtype"]),
    "unknown dtype": (good, changed("r.k.dtype = 99"), INVALID, ["k.dtype", "99"]),
    "bool q": (good, reshaped("q", 2, 4, 3, 4, dtype="bool"), INVALID, ["q", "bool", "float32"]),
    "int64 v": (good, reshaped("v", 2, 2, 5, 6, dtype="int64"), INVALID, ["v", "int64"]),
    "float64 tiled": (good, reshaped("q", 2, 4, 3, 4, dtype="float64"), INVALID, ["q", "float64", "reference"]),
    "float mask": (good, reshaped("options.mask", 5), INVALID, ["options.mask", "float32", "bool"]),
    "bool bias": (good, reshaped("options.bias", 5, dtype="bool"), INVALID, ["options.bias", "bool"]),
    "float64 output tiled": (
        good,
        options(output_dtype=pb.DATA_TYPE_FLOAT64),
        INVALID,
        ["options.output_dtype", "float64"],
    ),
    "bool output": (good, options(output_dtype=pb.DATA_TYPE_BOOL), INVALID, ["options.output_dtype", "bool"]),
    # Bytes.
    "one byte short": (good, changed("r.q.data = r.q.data[:-1]"), INVALID, ["q", "383", "384"]),
    "one byte long": (good, changed("r.k.data = r.k.data + b'0'"), INVALID, ["k", "321", "320"]),
    "one element long": (good, changed("r.v.data = r.v.data + b'0000'"), INVALID, ["v", "484", "480"]),
    "no bytes": (good, changed("r.v.data = b''"), INVALID, ["v", "0 bytes", "480"]),
    # Shapes.
    "q of rank 3": (good, reshaped("q", 8, 3, 4), INVALID, ["q", "[8,3,4]", "4 dimensions"]),
    "q of rank 5": (good, reshaped("q", 1, 2, 4, 3, 4), INVALID, ["q", "[1,2,4,3,4]", "4 dimensions"]),
    "q of rank 0": (good, reshaped("q"), INVALID, ["q", "4 dimensions"]),
    "rank 1000": (good, changed("r.q.shape.extend([1] * 1000)"), INVALID, ["q", "1004"]),
    "negative size": (good, reshaped("q", 2, 4, -3, 4), INVALID, ["q", "[2,4,-3,4]"]),
    "batch of k": (good, reshaped("k", 3, 2, 5, 4), INVALID, ["k", "[3,2,5,4]", "B = 2"]),
    "batch of v": (good, reshaped("v", 1, 2, 5, 6), INVALID, ["v", "[1,2,5,6]", "B = 2"]),
    "width of k": (good, reshaped("k", 2, 2, 5, 3), INVALID, ["k", "[2,2,5,3]", "d_k = 4"]),
    "heads of v": (good, reshaped("v", 2, 4, 5, 6), INVALID, ["v", "[2,4,5,6]", "Hkv = 2"]),
    "heads that do not divide": (good, reshaped("k", 2, 3, 5, 4), INVALID, ["k", "[2,3,5,4]", "Hq = 4"]),
    "keys of v": (good, reshaped("v", 2, 2, 6, 6), INVALID, ["v", "[2,2,6,6]", "Nk = 5"]),
    "no heads": (good, reshaped("q", 2, 0, 3, 4), INVALID, ["q", "[2,0,3,4]"]),
    "no kv heads": (good, reshaped("k", 2, 0, 5, 4), INVALID, ["k", "[2,0,5,4]"]),
    "width 0": (good, reshaped("q", 2, 4, 3, 0), INVALID, ["q", "[2,4,3,0]", "d_k"]),
    "value width 0": (good, reshaped("v", 2, 2, 5, 0), INVALID, ["v", "[2,2,5,0]", "d_v"]),
    "overflow": (good, reshaped("q", 2**40, 2**40, 2**40, 4), INVALID, ["q", "64"]),
    "overflow beside a zero": (good, reshaped("q", 2**40, 1, 0, 2**40), INVALID, ["q", "64"]),
    "2^40 empty sequences": (
        lambda: wire.request(*(np.zeros((1, 1, 0, 64)),) * 3),
        changed("[t.shape.__setitem__(0, 2**40) for t in (r.q, r.k, r.v)]"),
        TOO_MUCH,
        ["B * Hq", str(2**40), "sequence_heads_max"],
    ),
    # Lengths and offsets.
    "q_len of another batch": (good, options(q_len=[1]), INVALID, ["options.q_len", "1", "B = 2"]),
    "q_len beyond": (good, options(q_len=[3, 4]), INVALID, ["options.q_len", "4", "0 to 3"]),
    "kv_len beyond": (good, options(kv_len=[6, 0]), INVALID, ["options.kv_len", "6", "0 to 5"]),
    "negative kv_len": (good, options(kv_len=[0, -1]), INVALID, ["options.kv_len", "-1"]),
    "huge q_offset": (good, options(q_offset=[2**40 + 1, 0]), INVALID, ["options.q_offset", str(2**40 + 1)]),
    "huge negative q_offset": (
        good,
        options(q_offset=[0, -(2**40) - 1]),
        INVALID,
        ["options.q_offset", str(-(2**40) - 1)],
    ),
    "shifted by padding": (good, options(causal=True, kv_len=[5, 3]), INVALID, ["options.kv_len", "q_len", "q_offset"]),
    "lengths without x": (good, options(lengths=[1, 1]), INVALID, ["options.lengths", "x"]),
    "lengths and q_len": (good_x, options(lengths=[1, 1], q_len=[1, 1]), INVALID, ["options.q_len", "lengths"]),
    "lengths beyond": (good_x, options(lengths=[3, 4]), INVALID, ["options.lengths", "4", "0 to 3"]),
    # Scores.
    "nan scale": (good, options(scale=float("nan")), INVALID, ["options.scale", "nan", "finite"]),
    "inf scale": (good, options(scale=float("-inf")), INVALID, ["options.scale", "-inf", "finite"]),
    "softcap 0": (good, options(softcap=0.0), INVALID, ["options.softcap", "0"]),
    "inf softcap": (good, options(softcap=float("inf")), INVALID, ["options.softcap", "inf"]),
    "negative window": (good, options(window_left=-1), INVALID, ["options.window_left", "-1"]),
    "negative window right": (good, options(window_right=-7), INVALID, ["options.window_right", "-7"]),
    "slopes of 3 heads": (
        good,
        options(alibi_slopes=[1.0, 1.0, 1.0]),
        INVALID,
        ["options.alibi_slopes", "3", "Hq = 4"],
    ),
    "nan slope": (good, options(alibi_slopes=[0.0, float("nan"), 0.0, 0.0]), INVALID, ["options.alibi_slopes", "nan"]),
    "sinks of 5 heads": (good, options(sinks=[0.0] * 5), INVALID, ["options.sinks", "5", "Hq = 4"]),
    "nan sink": (good, options(sinks=[float("nan")] * 4), INVALID, ["options.sinks", "nan"]),
    "inf sink": (good, options(sinks=[0.0, 0.0, 0.0, float("inf")]), INVALID, ["options.sinks", "inf", "3"]),
    # Masks.
    "mask byte 2": (
        good,
        changed(
            "r.options.mask.CopyFrom(pb.Tensor(dtype=pb.DATA_TYPE_BOOL, shape=[5], " "data=bytes([1, 0, 1, 2, 1])))"
        ),
        INVALID,
        ["options.mask", "2", "3"],
    ),
    "mask too narrow": (good, reshaped("options.mask", 4, dtype="bool"), INVALID, ["options.mask", "[4]", "[2,4,3,5]"]),
    "mask of rank 0": (good, reshaped("options.mask", dtype="bool"), INVALID, ["options.mask"]),
    "mask of rank 5": (good, reshaped("options.mask", 1, 1, 1, 1, 5, dtype="bool"), INVALID, ["options.mask"]),
    "bias of other heads": (
        good,
        reshaped("options.bias", 2, 2, 3, 5),
        INVALID,
        ["options.bias", "[2,2,3,5]", "[2,4,3,5]"],
    ),
    # Rotary, in reference mode.
    "odd rotary_dim": (good, rotary(rotary_dim=3), INVALID, ["options.rotary.rotary_dim", "3", "even"]),
    "rotary_dim beyond": (good, rotary(rotary_dim=6), INVALID, ["options.rotary.rotary_dim", "6", "d_k = 4"]),
    "rotary without style": (good, rotary(style=0), INVALID, ["options.rotary.style"]),
    "rope_base 0": (good, rotary(rope_base=0.0), INVALID, ["options.rotary.rope_base", "0"]),
    "positions of another shape": (
        good,
        rotary(q_positions=wire.tensor(np.zeros((2, 4)), "int64")),
        INVALID,
        ["options.rotary.q_positions", "[2,4]", "[2,3]"],
    ),
    "float positions": (
        good,
        rotary(k_positions=wire.tensor(np.zeros((2, 5)))),
        INVALID,
        ["options.rotary.k_positions", "float32", "int64"],
    ),
    # Projection.
    "q_heads 0": (good_x, changed("r.projection.q_heads = 0"), INVALID, ["projection.q_heads", "0"]),
    "kv_heads 3": (good_x, changed("r.projection.kv_heads = 3"), INVALID, ["projection.kv_heads", "3", "4"]),
    "kv_heads negative": (good_x, changed("r.projection.kv_heads = -1"), INVALID, ["projection.kv_heads", "-1"]),
    "d_model of w_q": (good_x, reshaped("projection.w_q", 7, 16), INVALID, ["projection.w_q", "[7,16]", "8"]),
    "columns of w_k": (good_x, reshaped("projection.w_k", 8, 9), INVALID, ["projection.w_k", "[8,9]", "kv_heads = 2"]),
    "width of w_k": (good_x, reshaped("projection.w_k", 8, 10), INVALID, ["projection.w_k", "[8,10]", "d_k = 4"]),
    "inputs of w_o": (good_x, reshaped("projection.w_o", 23, 5), INVALID, ["projection.w_o", "[23,5]", "24"]),
    "length of b_q": (good_x, reshaped("projection.b_q", 15), INVALID, ["projection.b_q", "[15]", "16"]),
    "x of rank 4": (good_x, reshaped("x", 1, 2, 3, 8), INVALID, ["x", "[1,2,3,8]", "3 dimensions"]),
    "d_model 0": (good_x, reshaped("x", 2, 3, 0), INVALID, ["x", "[2,3,0]", "d_model"]),
    # Outputs.
    "an output twice": (good, changed("r.outputs.append(2)"), INVALID, ["outputs", "WEIGHTS"]),
    "unknown output": (good, changed("r.outputs.append(77)"), INVALID, ["outputs", "77"]),
    "unspecified output": (good, changed("r.outputs.append(0)"), INVALID, ["outputs"]),
    "projected without x": (good, changed("r.outputs.append(8)"), INVALID, ["outputs", "PROJECTED_Q", "x"]),
    # Fields and values that no one here knows.
    "unknown field": (good, changed(r"raw(r, b'\xa2\x06\x03abc')"), INVALID, ["AttendRequest", "unknown field 100"]),
    "unknown option": (good, changed(r"raw(r.options, b'\xa0\x06\x01')"), INVALID, ["options", "unknown field 100"]),
    "unknown tensor field": (good, changed(r"raw(r.k, b'\xa0\x06\x01')"), INVALID, ["k", "unknown field 100"]),
    "unknown mode": (good, changed("r.options.mode = 9"), INVALID, ["options.mode", "9"]),
    "unknown layout": (good, changed("r.options.layout = 9"), INVALID, ["options.layout", "9"]),
}


def refusal(call):
    with pytest.raises((grpc.RpcError, wire.ProblemFailed)) as caught:
        call()
    error = caught.value
    return (error.code, error.text) if isinstance(error, wire.ProblemFailed) else (error.code(), error.details())


def stream_inline(stub, message):
    """The whole request in the header; tensors without bytes stay waiting, and the stream ends before any come."""
    (answer,) = wire.attend_many(stub, [message], inline=[name for name, _ in wire.tensor_fields(message)])
    raise answer


@pytest.mark.parametrize("call", ["attend", "stream"])
@pytest.mark.parametrize("name", TABLE)
def test_a_malformed_request(stub, call, name):
    start, change, code, words = TABLE[name]
    message = start()
    change(message)
    if call == "stream" and name == "no bytes":
        code, words = INVALID, ["v"]  # on a stream the bytes may follow, but none did
    got, text = refusal(lambda: (wire.attend if call == "attend" else stream_inline)(stub, message))
    assert got == code, text
    for word in words:
        assert word in text, f"{word!r} is not in {text!r}"
    assert len(text) < 400 and "\n" not in text
    wire.attend(stub, good())


def test_the_good_requests_are_good(stub):
    """Or the table would prove nothing."""
    for start in (good, good_x):
        for call in wire.CALLS.values():
            assert call(stub, start())["output"].size > 0


@pytest.mark.parametrize(
    "data", [b"\xff", b"\x0a\xff\xff\xff\xff\x0f", b"\x0a\x05abc", b"\x00" * 50, b"\x0b\x0c" * 1000]
)
def test_bytes_that_are_no_message(server, data):
    """Whatever the bytes are, they end the call and nothing else."""
    channel = server.channel()
    for method in ("Attend", "Plan"):
        call = channel.unary_unary(f"/attnd.v1.AttentionService/{method}")
        with pytest.raises(grpc.RpcError) as caught:
            call(data, timeout=CALL_SECONDS_MAX)
        assert caught.value.code() in (grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.INTERNAL)
    wire.attend(server.stub(), good())


# Pieces of a stream: (messages after the header of problem 1, words of the refusal).
def piece(tensor="q", offset=0, data=b"0" * 4, problem=1):
    return pb.AttendStreamRequest(
        problem_id=problem, piece=pb.TensorPiece(tensor=tensor, offset_bytes=offset, data=data)
    )


WHOLE = {"q": 384, "k": 320, "v": 480}
PIECES = {
    "unknown tensor": ([piece("w")], ["w"]),
    "a tensor the header lacks": ([piece("options.mask")], ["options.mask"]),
    "negative offset": ([piece(offset=-4)], ["q", "-4"]),
    "offset beyond": ([piece(offset=384)], ["q", "384"]),
    "end beyond": ([piece(offset=382)], ["q", "384"]),
    "offset near the largest": ([piece(offset=2**63 - 2)], ["q"]),
    "empty": ([piece(data=b"")], ["q"]),
    "twice": ([piece(), piece()], ["q"]),
    "overlapping": ([piece(offset=4, data=b"0" * 8), piece(offset=0, data=b"0" * 5)], ["q"]),
    "one byte missing": ([piece("q", 0, b"\0" * 383), *(piece(n, 0, b"\0" * WHOLE[n]) for n in "kv")], ["q"]),
    "unknown tensor name of a megabyte": ([piece("q" * (1 << 20))], []),
}


@pytest.mark.parametrize("name", PIECES)
def test_a_malformed_piece(stub, name):
    """It ends its problem, and a good problem on the same stream is answered."""
    messages, words = PIECES[name]
    header = pb.AttendStreamRequest(problem_id=1)
    header.header.CopyFrom(good())
    for tensor in "qkv":
        getattr(header.header, tensor).data = b""
    expected = wire.attend(stub, good())
    joiner, error = wire.BlockJoiner(), None
    sent = [header, *messages, *wire.stream_messages(2, good())]
    for reply in stub.AttendStream(iter(sent), timeout=CALL_SECONDS_MAX):
        if reply.problem_id == 1:
            assert reply.closing.HasField("error")
            error = reply.closing.error
        elif reply.HasField("block"):
            joiner.blocks.append(reply.block)
        else:
            assert joiner.close(reply.closing).raw == expected.raw
            joiner = None
    assert joiner is None and error is not None
    assert error.code == grpc.StatusCode.INVALID_ARGUMENT.value[0], error.message
    for word in words:
        assert word in error.message
    assert len(error.message) < 400
