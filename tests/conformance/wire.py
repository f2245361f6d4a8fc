"""NumPy arrays to messages and back, and both calls behind one shape of answer.

An answer maps an output's name ("output", "weights", "lse", "scores_dot", "projected_q", ...) to an array in the order
in which Attend replies; `raw` keeps the very bytes, for tests of equality.
"""

import dataclasses
import random

import grpc
import numpy as np

from attnd.v1 import attention_pb2 as pb
from attnd_server import CALL_SECONDS_MAX

DTYPES = {
    "float32": pb.DATA_TYPE_FLOAT32,
    "float16": pb.DATA_TYPE_FLOAT16,
    "bfloat16": pb.DATA_TYPE_BFLOAT16,
    "float64": pb.DATA_TYPE_FLOAT64,
    "bool": pb.DATA_TYPE_BOOL,
    "int64": pb.DATA_TYPE_INT64,
}
DTYPE_NAMES = {number: name for name, number in DTYPES.items()}
# What NumPy holds the elements in; it has no bfloat16, whose bits travel as uint16.
STORAGE = {"float32": "<f4", "float16": "<f2", "bfloat16": "<u2", "float64": "<f8", "bool": "|u1", "int64": "<i8"}
OUTPUTS = {name.removeprefix("OUTPUT_KIND_").lower(): number for name, number in pb.OutputKind.items()}
OUTPUT_NAMES = {number: name for name, number in OUTPUTS.items()}
LAYOUTS = {"bhnd": pb.LAYOUT_BHND, "bnhd": pb.LAYOUT_BNHD}


def to_bits(array, dtype):
    """The array's elements rounded to nearest even into dtype, as NumPy stores that dtype."""
    if dtype != "bfloat16":
        with np.errstate(over="ignore", invalid="ignore"):
            return np.ascontiguousarray(array).astype(STORAGE[dtype])
    bits = np.ascontiguousarray(array, np.float32).view(np.uint32)
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
    return np.where(np.isnan(array), 0x7FC0, rounded).astype("<u2")


def from_bits(bits, dtype):
    """Values as NumPy computes with them: bfloat16 becomes float32."""
    return (bits.astype(np.uint32) << 16).view(np.float32) if dtype == "bfloat16" else bits


def rounded(array, dtype):
    """What the server sees of an array that is sent as dtype."""
    return from_bits(to_bits(array, dtype), dtype)


def tensor(array, dtype="float32"):
    array = np.asarray(array)
    return pb.Tensor(dtype=DTYPES[dtype], shape=array.shape, data=to_bits(array, dtype).tobytes())


def request(
    q=None,
    k=None,
    v=None,
    *,
    x=None,
    projection=None,
    dtype="float32",
    dtypes=None,
    outputs=(),
    mask=None,
    bias=None,
    bias_dtype="float32",
    rotary=None,
    page_table=None,
    layout=None,
    output_dtype=None,
    reference=False,
    **options,
):
    """An AttendRequest. Options carry the contract's own names; `dtypes` gives q, k, v one each."""
    dtypes = dtypes or (dtype,) * 3
    message = pb.AttendRequest(outputs=[OUTPUTS[name] for name in outputs])
    if x is None:
        for name, array, kind in zip("qkv", (q, k, v), dtypes):
            getattr(message, name).CopyFrom(tensor(array, kind))
    else:
        message.x.CopyFrom(tensor(x, dtype))
        message.projection.CopyFrom(projection)
    o = message.options
    if mask is not None:
        o.mask.CopyFrom(tensor(mask, "bool"))
    if bias is not None:
        o.bias.CopyFrom(tensor(bias, bias_dtype))
    if rotary is not None:
        _rotary(o.rotary, **rotary)
    if page_table is not None:
        o.page_table.CopyFrom(tensor(page_table, "int64"))
    if layout is not None:
        o.layout = LAYOUTS[layout]
    if output_dtype is not None:
        o.output_dtype = DTYPES[output_dtype]
    if reference:
        o.mode = pb.COMPUTE_MODE_REFERENCE
    for name, value in options.items():
        if value is None:
            continue
        if isinstance(value, (list, tuple, np.ndarray)):
            getattr(o, name).extend(np.asarray(value).tolist())
        else:
            setattr(o, name, value)
    return message


def projection(q_heads, kv_heads, *, dtype="float32", transposed=False, **weights):
    """weights: w_q, w_k, w_v, b_q, ..., w_o, b_o; those that are None are left out."""
    message = pb.Projection(q_heads=q_heads, kv_heads=kv_heads, weights_transposed=transposed)
    for name, array in weights.items():
        if array is not None:
            getattr(message, name).CopyFrom(tensor(array, dtype))
    return message


def _rotary(message, style, dim, base=None, q_positions=None, k_positions=None):
    message.style = {"half": pb.ROTARY_STYLE_HALF, "interleaved": pb.ROTARY_STYLE_INTERLEAVED}[style]
    message.rotary_dim = dim
    if base is not None:
        message.rope_base = base
    for name, positions in (("q_positions", q_positions), ("k_positions", k_positions)):
        if positions is not None:
            getattr(message, name).CopyFrom(tensor(positions, "int64"))


@dataclasses.dataclass
class Answer:
    values: dict
    raw: dict
    statistics: pb.Statistics

    def __getitem__(self, name):
        return self.values[name]

    @classmethod
    def of(cls, tensors, statistics):
        """tensors: name -> (dtype's name, shape, bytes)."""
        values, raw = {}, {}
        for name, (dtype, shape, data) in tensors.items():
            values[name] = from_bits(np.frombuffer(data, STORAGE[dtype]), dtype).reshape(shape)
            raw[name] = bytes(data)
        return cls(values, raw, statistics)


class ProblemFailed(Exception):
    """A problem of a stream that ended with an error; its words and code are those of the unary call."""

    def __init__(self, error):
        super().__init__(f"{error.code}: {error.message}")
        self.code = next(code for code in grpc.StatusCode if code.value[0] == error.code)
        self.text = error.message


def attend(stub, message, timeout=CALL_SECONDS_MAX):
    reply = stub.Attend(message, timeout=timeout)
    tensors = {"output": reply.output}
    tensors.update((OUTPUT_NAMES[extra.kind], extra.tensor) for extra in reply.extras)
    return Answer.of(
        {name: (DTYPE_NAMES[t.dtype], tuple(t.shape), t.data) for name, t in tensors.items()}, reply.statistics
    )


def tensor_fields(message, path=""):
    """Every tensor of a request with its path: "q", "projection.w_q", "options.mask", "options.rotary.q_positions"."""
    for field, value in message.ListFields():
        name = f"{path}{field.name}"
        if isinstance(value, pb.Tensor):
            yield name, value
        elif field.message_type is not None and not field.is_extension and hasattr(value, "ListFields"):
            yield from tensor_fields(value, f"{name}.")


def stream_messages(problem_id, message, piece_bytes=1 << 18, shuffle=None, inline=()):
    """The messages that send one problem in pieces; tensors named in `inline` stay in the header."""
    header = pb.AttendRequest()
    header.CopyFrom(message)
    pieces = []
    for name, value in tensor_fields(header):
        if name in inline or not value.data:
            continue
        data = value.data
        value.data = b""
        pieces += [
            pb.TensorPiece(tensor=name, offset_bytes=at, data=data[at : at + piece_bytes])
            for at in range(0, len(data), piece_bytes)
        ]
    if shuffle is not None:
        random.Random(shuffle).shuffle(pieces)
    yield pb.AttendStreamRequest(problem_id=problem_id, header=header)
    for piece in pieces:
        yield pb.AttendStreamRequest(problem_id=problem_id, piece=piece)


class BlockJoiner:
    """Blocks of one problem, put together; every element must come exactly once."""

    def __init__(self, layout=pb.LAYOUT_BHND):
        self.blocks = []
        self._layout = layout

    def close(self, closing):
        if closing.HasField("error"):
            raise ProblemFailed(closing.error)
        tensors = {}
        for shape in closing.outputs:
            wide = tuple(shape.shape) + (1,) * (4 - len(shape.shape))  # [B, H, N, columns]
            dtype = DTYPE_NAMES[shape.dtype]
            whole, seen = np.zeros(wide, STORAGE[dtype]), np.zeros(wide, np.uint8)
            for block in self.blocks:
                if block.kind != shape.kind:
                    continue
                assert block.dtype == shape.dtype
                at = (
                    block.batch,
                    block.head,
                    slice(block.first_row, block.first_row + block.rows),
                    slice(block.first_column, block.first_column + block.columns),
                )
                whole[at] = np.frombuffer(block.data, STORAGE[dtype]).reshape(block.rows, block.columns)
                seen[at] += 1
            assert np.all(seen == 1), f"{OUTPUT_NAMES[shape.kind]}: elements that did not come exactly once"
            tensors[OUTPUT_NAMES[shape.kind]] = (dtype, *self._reply_order(shape.kind, whole))
        known = {shape.kind for shape in closing.outputs}
        assert all(block.kind in known for block in self.blocks)
        return Answer.of(tensors, closing.statistics)

    def _reply_order(self, kind, whole):
        """Shape and bytes as Attend replies."""
        if kind == pb.OUTPUT_KIND_LSE:
            whole = whole[..., 0]
        elif kind == pb.OUTPUT_KIND_OUTPUT and self._layout == pb.LAYOUT_BNHD:
            whole = whole.transpose(0, 2, 1, 3)
        return whole.shape, np.ascontiguousarray(whole).tobytes()


def attend_stream(stub, message, timeout=CALL_SECONDS_MAX, **pieces):
    """One problem over a stream of its own. Raises ProblemFailed, or grpc.RpcError when the stream itself failed."""
    (answer,) = attend_many(stub, [message], timeout, **pieces)
    if isinstance(answer, ProblemFailed):
        raise answer
    if message.projection.HasField("w_o"):  # blocks have a head where the reply has none
        output = answer.values["output"]
        answer.values["output"] = output.reshape(output.shape[0], output.shape[-2], output.shape[-1])
    return answer


def attend_many(stub, messages, timeout=CALL_SECONDS_MAX, may_end_badly=False, **pieces):
    """Problems one after another on one stream; a list of Answer or ProblemFailed in the order sent.

    `may_end_badly` forgives a stream that ends with an error after every problem was closed.
    """
    sent = (part for number, message in enumerate(messages) for part in stream_messages(number, message, **pieces))
    joiners = [BlockJoiner(message.options.layout) for message in messages]
    answers = [None] * len(messages)
    try:
        for reply in stub.AttendStream(sent, timeout=timeout):
            assert answers[reply.problem_id] is None, "a message about a problem that was closed"
            if reply.HasField("block"):
                joiners[reply.problem_id].blocks.append(reply.block)
            else:
                answers[reply.problem_id] = _closed(joiners[reply.problem_id], reply.closing)
    except grpc.RpcError:
        if not may_end_badly or None in answers:
            raise
    assert None not in answers, "the stream ended with a problem unanswered"
    return answers


def _closed(joiner, closing):
    try:
        return joiner.close(closing)
    except ProblemFailed as failed:
        return failed


CALLS = {"attend": attend, "stream": attend_stream}
