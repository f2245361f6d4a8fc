"""One attention problem: the caller's keywords into the wire's request, and the answer back in the caller's rank.

Names used in every comment: B sequences, Hq query heads, Hkv key/value heads, Nq query rows, Nk keys, d_k the width of
a query and a key, d_v the width of a value. Row i of sequence b stands at position p = i + q_offset[b].
"""

from __future__ import annotations

import contextlib
import functools
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, Literal, TypedDict, Unpack

import numpy as np

from attnd import _arrays, _contract, _wire
from attnd._arrays import FLOATS, Stored, Wire
from attnd._errors import Error, Internal, InvalidArgument, of_code, reading

# An array of anyone's kind (see attnd._arrays), or a tensor that the server has.
Tensor = Any

Output = Literal[
    "output",
    "weights",
    "lse",
    "scores_dot",
    "scores_scaled",
    "scores_capped",
    "scores_biased",
    "projected_q",
    "projected_k",
    "projected_v",
]


@dataclass(frozen=True)
class Rotary:
    """Rotary position embedding of q and k; never changes causal, window or ALiBi."""

    rotary_dim: int  # even, 2 to d_k: the first rotary_dim coordinates turn
    style: Literal["half", "interleaved"] = "half"  # x[t] with x[t + rotary_dim / 2], or x[2t] with x[2t + 1]
    rope_base: float | None = None  # absent: 10000
    q_positions: Tensor = None  # [B, Nq] integers; absent: p
    k_positions: Tensor = None  # [B, Nk] integers; absent: the key's index


@dataclass(frozen=True)
class Projection:
    """Weights that make q, k and v of x [B, N, d_model]: Q = X W_Q + b_Q, head h its columns in order."""

    q_heads: int  # Hq
    kv_heads: int  # Hkv, divides Hq
    w_q: Tensor  # [d_model, Hq * d_k]
    w_k: Tensor  # [d_model, Hkv * d_k]
    w_v: Tensor  # [d_model, Hkv * d_v]
    b_q: Tensor = None  # [Hq * d_k]
    b_k: Tensor = None  # [Hkv * d_k]
    b_v: Tensor = None  # [Hkv * d_v]
    w_o: Tensor = None  # [Hq * d_v, d_out]: then the output is [B, N, d_out]
    b_o: Tensor = None  # [d_out], only with w_o
    weights_transposed: bool = False  # every w_* is [out, in], as PyTorch's Linear keeps it


class Options(TypedDict, total=False):
    """The keywords of `attend` beside q, k and v. Absent means as the contract says; nothing is ignored.

    x             [B, N, d_model] or [N, d_model], in place of q, k and v, with projection or weight_set
    projection    attnd.Projection: the weights that make q, k and v of x
    weight_set    one that the server has: its name (the newest), or (name, version)
    outputs       one or several beside the output, which always comes: "weights", "lse", "scores_dot", "scores_scaled",
                  "scores_capped", "scores_biased", "projected_q", "projected_k", "projected_v"
    scale         multiplies q . k; absent: 1 / sqrt(d_k); 0 and negative mean what they say
    causal        key j is allowed when j <= p
    window_left   >= 0: key j is allowed when j >= p - window_left
    window_right  >= 0: key j is allowed when j <= p + window_right
    q_offset      of each sequence, or one for all; absent: the last query sees the last key. p = i + q_offset
    q_len         of each sequence, or one for all: rows beyond are 0 with LSE -inf
    kv_len        of each sequence, or one for all: keys beyond are excluded
    lengths       only with x: q_len and kv_len together
    mask          bool, rank 1 to 4, broadcast from the right to [B, Hq, Nq, Nk] ([B, Nq, Nk] beside q of rank 3);
                  True: allowed
    bias          float, broadcast likewise, added after soft cap and ALiBi; exactly -inf excludes
    softcap       > 0: s becomes softcap * tanh(s / softcap)
    alibi_slopes  Hq of them: s becomes s - slope * |p - j|
    sinks         Hq logits that take weight and have no value; -inf: none
    rotary        attnd.Rotary: position embedding of q and k
    page_table    [B, T] integers: k and v are pages, [P, Hkv, R, d] or by layout
    layout        of q, k, v and the output: "bhnd", or "bnhd" for [B, N, H, d]
    output_dtype  "float32", "float16", "bfloat16" or "float64"; absent: q's or x's
    mode          "tiled", or "reference": the formula in float64, slow, which takes float64 tensors
    priority      "low", "normal" or "high": what share of the server it gets; never changes an answer
    """

    x: Tensor
    projection: Projection
    weight_set: str | tuple[str, int]
    outputs: Output | Iterable[Output]
    scale: float | None
    causal: bool
    window_left: int | None
    window_right: int | None
    q_offset: int | Sequence[int] | None
    q_len: int | Sequence[int] | None
    kv_len: int | Sequence[int] | None
    lengths: int | Sequence[int] | None
    mask: Tensor
    bias: Tensor
    softcap: float | None
    alibi_slopes: Sequence[float] | None
    sinks: Sequence[float] | None
    rotary: Rotary | None
    page_table: Tensor
    layout: Literal["bhnd", "bnhd"]
    output_dtype: Literal["float32", "float16", "bfloat16", "float64"]
    mode: Literal["tiled", "reference"]
    priority: Literal["low", "normal", "high"]


@dataclass(frozen=True)
class Statistics:
    """What a problem took, by the server."""

    queue_us: int  # microseconds from the moment it could start to the first unit of work
    compute_us: int  # microseconds from the first unit of work to the last
    total_us: int  # microseconds from the arrival of the last byte to the answer being ready
    flops: int
    nonfinite_rows: int  # rows (b, h, i) with a NaN or an infinity in the output
    q_offset: tuple[int, ...]  # the B values that were used
    threads: int  # compute threads the server has
    memory_bytes: int  # reserved for this problem while it ran
    slices: int  # turns that compute threads took at it
    threads_used: int
    worked_us: int  # microseconds that compute threads worked at it, added up


@dataclass(frozen=True)
class Answer:
    """Arrays of NumPy, or of torch where q (or x) is a torch tensor, in q's rank; None for what was not asked for."""

    output: Any  # [B, Hq, Nq, d_v], by layout [B, Nq, Hq, d_v], or [B, N, d_out] with w_o
    weights: Any = None  # [B, Hq, Nq, Nk] float32; excluded entries are exactly 0
    lse: Any = None  # [B, Hq, Nq] float32 (float64 in reference mode)
    scores: Mapping[str, Any] = field(default_factory=dict)  # "dot", "scaled", "capped", "biased": [B, Hq, Nq, Nk]
    projected: Mapping[str, Any] = field(default_factory=dict)  # "q", "k", "v": [B, H, N, d] float32
    statistics: Statistics | None = None


_REQUEST = _contract.message("AttendRequest")
_OPTIONS = _contract.message("Options")
_ROTARY = _contract.message("Rotary")
_PROJECTION = _contract.message("Projection")
_RESPONSE = _contract.message("AttendResponse")
_NAMED = _contract.message("NamedTensor")
_STATISTICS = _contract.message("Statistics")
_OUTPUT_FIELD, _EXTRAS_FIELD, _STATISTICS_FIELD = (
    _contract.number(_RESPONSE, name) for name in ("output", "extras", "statistics")
)
_TENSOR_FIELD = _contract.number(_NAMED, "tensor")
_PLAIN = ("causal", "window_left", "window_right", "scale", "softcap")
_PER_SEQUENCE = ("q_offset", "q_len", "kv_len", "lengths")
_PER_HEAD = ("alibi_slopes", "sinks")
_ENUMS = {
    "layout": _contract.LAYOUTS,
    "output_dtype": {name: _contract.DTYPES[name] for name in FLOATS},
    "mode": _contract.MODES,
}


@dataclass
class Problem:
    """What goes out, and what is known of what comes back."""

    request: _wire.Node
    like: Any  # q or x: whose kind of array the answer is
    dropped: str  # of "bhnc", the dimensions that the caller's arrays do not have
    layout: str
    from_x: bool
    has_w_o: bool | None  # None: as the weight set has it
    message_bytes: int  # of tensors, there or back, whichever are more, as far as shapes are known here

    def restored(self, kind: str, array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """A reply's array of full rank without the dimensions that the caller's arrays do not have."""
        if kind == "output" and self.from_x and array.ndim == 3:
            dimensions = "bnc"  # with w_o
        elif kind == "output" and self.layout == "bnhd":
            dimensions = "bnhc"
        else:
            dimensions = "bhn" if kind == "lse" else "bhnc"
        gone = tuple(axis for axis, letter in enumerate(dimensions) if letter in self.dropped)
        if array.ndim != len(dimensions) or any(array.shape[axis] != 1 for axis in gone):
            raise Internal(f"the server answered {kind} of shape {_arrays.shape_text(array.shape)}")
        return array.squeeze(gone)

    def copy(self) -> "Problem":
        """Another over the same arrays, whose bytes may be taken."""
        return replace(self, request=self.request.copy())

    def weight_set(self) -> tuple[str, int]:
        """Its name and version."""
        return self.request.head.weight_set.name, self.request.head.weight_set.version

    def pin(self, weight_set: Any) -> None:
        """Holds the problem to this version of its weight set, whose tensors say what an output is."""
        self.request.head.weight_set.version = weight_set.version
        self.has_w_o = "w_o" in weight_set.shapes

    def in_reply_order(self, kind: str, blocks: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """What a stream's blocks made, [B, H, N, columns], in the order of an Attend's reply."""
        if kind == "lse":
            return blocks[..., 0]
        if kind == "output" and self.has_w_o:
            return blocks[:, 0]
        return blocks.swapaxes(1, 2) if kind == "output" and self.layout == "bnhd" else blocks

    def answer(self, tensors: Mapping[str, tuple[int, np.ndarray[Any, Any]]], statistics: Any) -> Answer:
        """Of a reply's tensors by name: (dtype, array of full rank)."""
        if "output" not in tensors:
            raise Internal("the server answered without an output")
        given = {
            kind: _arrays.give(dtype, self.restored(kind, array), self.like) for kind, (dtype, array) in tensors.items()
        }
        return Answer(
            output=given["output"],
            weights=given.get("weights"),
            lse=given.get("lse"),
            scores={kind.removeprefix("scores_"): array for kind, array in given.items() if kind.startswith("scores_")},
            projected={
                kind.removeprefix("projected_"): array for kind, array in given.items() if kind.startswith("projected_")
            },
            statistics=record(Statistics, statistics),
        )

    def read(self, reply: bytes) -> Answer:
        """Of an AttendResponse."""
        tensors: dict[str, tuple[int, np.ndarray[Any, Any]]] = {}
        statistics = _STATISTICS()
        with reading():
            for number, value, _ in _wire.fields(memoryview(reply)):
                if isinstance(value, int):
                    continue
                if number == _OUTPUT_FIELD:
                    tensors["output"] = _arrays.read_tensor(value)
                elif number == _EXTRAS_FIELD:
                    rest, tensor = _wire.take(value, _TENSOR_FIELD)
                    tensors[output_name(_NAMED.FromString(rest).kind)] = _arrays.read_tensor(tensor)
                elif number == _STATISTICS_FIELD:
                    statistics = _STATISTICS.FromString(bytes(value))
        return self.answer(tensors, statistics)


def output_name(kind: Any) -> str:
    if kind not in _contract.OUTPUT_NAMES:
        raise Internal(f"the server answered output kind {kind}, which this client does not know")
    return _contract.OUTPUT_NAMES[kind]


def record(kind: Any, message: Any, **others: Any) -> Any:
    """A dataclass of a message's fields of the same names."""
    values = dict(others)
    for name in _field_names(kind):
        if name not in values:
            value = getattr(message, name)
            values[name] = value if isinstance(value, (int, float, str)) else tuple(value)
    return kind(**values)


@functools.cache
def _field_names(kind: Any) -> tuple[str, ...]:
    return tuple(field.name for field in fields(kind))


def sdpa(
    query: Any,
    key: Any,
    value: Any,
    attn_mask: Any,
    dropout_p: float,
    is_causal: bool,
    scale: float | None,
    enable_gqa: bool,
) -> Problem:
    """PyTorch's scaled_dot_product_attention as a problem."""
    if dropout_p != 0:
        raise InvalidArgument(f"dropout_p: {dropout_p}, expected 0: nothing is dropped at random here")
    if is_causal and attn_mask is not None:
        raise InvalidArgument("attn_mask: given together with is_causal, expected one of them")
    if isinstance(attn_mask, Stored):
        raise InvalidArgument(f"attn_mask: {attn_mask}, expected an array: attend takes it, as mask or as bias")
    given = {"query": query, "key": key, "value": value, "attn_mask": attn_mask}
    query, key, value, attn_mask = (
        array if array is None or isinstance(array, Stored) else _arrays.plain(name, array)
        for name, array in given.items()
    )
    heads = {
        name: array.shape[1]
        for name, array in (("query", query), ("key", key), ("value", value))
        if len(getattr(array, "shape", ())) == 4
    }
    if not enable_gqa and len(set(heads.values())) > 1:
        raise InvalidArgument(f"heads: {heads}, expected the same count everywhere without enable_gqa")
    if attn_mask is not None and not _arrays.is_bool(attn_mask) and "float" not in str(attn_mask.dtype):
        raise InvalidArgument(f"attn_mask: dtype {attn_mask.dtype}, expected bool, or float as query is")
    options: Options = {"scale": scale}
    if is_causal:
        options |= {"causal": True, "q_offset": 0}
    if attn_mask is not None:
        options |= {"mask": attn_mask} if _arrays.is_bool(attn_mask) else {"bias": attn_mask}
    return problem(query, key, value, **options)


_PYTORCHS_NAMES = {"q": "query", "k": "key", "v": "value", "scale": "scale", "mask": "attn_mask", "bias": "attn_mask"}


@contextlib.contextmanager
def in_pytorchs_words() -> Iterator[None]:
    """Around scaled_dot_product_attention: what is said of q, k, v, mask and bias is said of its own arguments."""
    try:
        yield
    except Error as error:
        names = "|".join(_PYTORCHS_NAMES)
        said = re.sub(
            rf"^(?:options\.)?({names})(?=[:.])|(?<= as in )([qkv])\b",
            lambda found: _PYTORCHS_NAMES[found[1] or found[2]],
            error.message,
        )
        if said == error.message:
            raise
        raise of_code(error.code, said, error.retry_after_s) from None


def problem(q: Tensor = None, k: Tensor = None, v: Tensor = None, **options: Unpack[Options]) -> Problem:
    """InvalidArgument where arrays are of the wrong kind or rank; what they mean together is the server's to judge."""
    given: dict[str, Any] = {name: value for name, value in options.items() if value is not None}
    if unknown := given.keys() - Options.__annotations__.keys():
        raise TypeError(f"unknown option {', '.join(sorted(unknown))}")
    layout = given.get("layout", "bhnd")
    tensors = {
        name: _tensor(name, array)
        for name, array in (("q", q), ("k", k), ("v", v), ("x", given.get("x")))
        if array is not None
    }
    dropped = _lift(tensors, layout)
    lead = tensors.get("x") or tensors.get("q")
    batch = lead.shape[0] if isinstance(lead, Wire) else None
    request = _wire.Node(_REQUEST())
    request.parts += [(name, _arrays.node_of(tensor)) for name, tensor in tensors.items()]
    weights = given.get("projection")
    if weights is not None:
        request.parts.append(("projection", projection_node(weights)))
    if "weight_set" in given:
        match given["weight_set"]:
            case str(name) | (str(name), None):
                request.head.weight_set.name = name
            case (str(name), version):
                request.head.weight_set.name = name
                _contract.assign(request.head.weight_set, "version", version, "weight_set")
            case other:
                raise InvalidArgument(f"weight_set: {other!r}, expected its name, or (name, version)")
    if "priority" in given:
        request.head.priority = _enum("priority", given["priority"], _contract.PRIORITIES)
    outputs = given.get("outputs", ())
    outputs = dict.fromkeys([outputs] if isinstance(outputs, str) else outputs)
    wanted = [_enum("outputs", name, _contract.OUTPUTS) for name in outputs if name != "output"]
    request.head.outputs.extend(wanted)
    request.parts.append(("options", _options_node(given, dropped, batch)))
    like = q if given.get("x") is None else given["x"]
    if given.get("output_dtype") == "bfloat16" and _arrays.torch_of(like) is None:
        _arrays.numpy_dtype("bfloat16")  # an answer that could not be given is not asked for
    return Problem(
        request=request,
        like=like,
        dropped=dropped,
        layout=layout,
        from_x="x" in tensors,
        has_w_o=None if "weight_set" in given else weights is not None and weights.w_o is not None,
        message_bytes=max(request.large_bytes(), _reply_bytes(tensors, given, outputs)),
    )


def _tensor(name: str, value: Any, kinds: tuple[str, ...] = FLOATS) -> Wire | Stored:
    return value if isinstance(value, Stored) else _arrays.to_wire(name, value, kinds)


def _lift(tensors: dict[str, Wire | Stored], layout: str) -> str:
    """Gives q, k, v or x their full rank, and says which dimensions the first of them had not."""
    full, shapes, missing = 4, "2 [N,d], 3 [B,N,d] or 4 [B,H,N,d]", {2: "bh", 3: "h"}
    if "x" in tensors:
        full, shapes, missing = 3, "2 [N,d_model] or 3 [B,N,d_model]", {2: "b"}
    arrays = {name: tensor for name, tensor in tensors.items() if isinstance(tensor, Wire)}
    rank = None
    for name, tensor in arrays.items():
        if len(tensor.shape) not in (*missing, full) or rank not in (None, len(tensor.shape)):
            expected = f"rank {shapes}" if rank is None else f"rank {rank} as in {next(iter(arrays))}"
            raise InvalidArgument(f"{name}: shape {_arrays.shape_text(tensor.shape)}, expected {expected}")
        rank = len(tensor.shape)
        if "b" in missing.get(rank, ""):
            tensor.shape = (1, *tensor.shape)
        if "h" in missing.get(rank, ""):
            at = 2 if layout == "bnhd" else 1
            tensor.shape = (*tensor.shape[:at], 1, *tensor.shape[at:])
    first = next(iter(tensors.values()), None)  # q or x; a stored one has its full rank
    return missing.get(rank, "") if isinstance(first, Wire) and rank is not None else ""


def _options_node(given: Mapping[str, Any], dropped: str, batch: int | None) -> _wire.Node:
    node = _wire.Node(_OPTIONS())
    for name in _PLAIN:
        if name in given:
            _contract.assign(node.head, name, given[name])
    for name, values in _ENUMS.items():
        if name in given:
            setattr(node.head, name, _enum(name, given[name], values))
    for name in _PER_SEQUENCE:
        if name in given:
            getattr(node.head, name).extend(_per_sequence(name, given[name], batch))
    for name in _PER_HEAD:
        if name in given:
            getattr(node.head, name).extend(_per_head(name, given[name]))
    for name, kinds in (("mask", ("bool",)), ("bias", FLOATS), ("page_table", ("int64",))):
        if name in given:
            tensor = _tensor(name, given[name], kinds)
            if isinstance(tensor, Wire) and name != "page_table" and dropped == "h" and len(tensor.shape) == 3:
                tensor.shape = (tensor.shape[0], 1, *tensor.shape[1:])  # [B, Nq, Nk]: there is one head
            node.parts.append((name, _arrays.node_of(tensor)))
    if "rotary" in given:
        node.parts.append(("rotary", rotary_node(given["rotary"])))
    return node


def rotary_node(rotary: Rotary) -> _wire.Node:
    if not isinstance(rotary, Rotary):
        raise InvalidArgument(f"rotary: {type(rotary).__name__}, expected attnd.Rotary")
    style = _enum("rotary.style", rotary.style, _contract.ROTARY_STYLES)
    node = _wire.Node(_ROTARY(style=style))
    for name in ("rotary_dim", "rope_base"):
        if getattr(rotary, name) is not None:
            _contract.assign(node.head, name, getattr(rotary, name), f"rotary.{name}")
    for name in ("q_positions", "k_positions"):
        if getattr(rotary, name) is not None:
            tensor = _tensor(f"rotary.{name}", getattr(rotary, name), ("int64",))
            node.parts.append((name, _arrays.node_of(tensor)))
    return node


def projection_node(projection: Projection) -> _wire.Node:
    if not isinstance(projection, Projection):
        raise InvalidArgument(f"projection: {type(projection).__name__}, expected attnd.Projection")
    node = _wire.Node(_PROJECTION())
    for name in ("q_heads", "kv_heads", "weights_transposed"):
        _contract.assign(node.head, name, getattr(projection, name), f"projection.{name}")
    for name in ("w_q", "w_k", "w_v", "b_q", "b_k", "b_v", "w_o", "b_o"):
        if getattr(projection, name) is not None:
            node.parts.append((name, _arrays.node_of(_tensor(f"projection.{name}", getattr(projection, name)))))
    return node


def _enum(name: str, value: Any, values: Mapping[str, int]) -> int:
    if value not in values:
        raise InvalidArgument(f"{name}: {value!r}, expected {' or '.join(values)}")
    return values[value]


def _per_head(name: str, value: Any) -> list[float]:
    try:
        return [float(number) for number in np.asarray(_arrays.plain(name, value), np.float32).ravel()]
    except (TypeError, ValueError) as error:
        raise InvalidArgument(f"{name}: {error}") from None


def _per_sequence(name: str, value: Any, batch: int | None) -> list[int]:
    array = np.asarray(_arrays.plain(name, value))
    if array.dtype.kind not in "iu" and array.size:
        raise InvalidArgument(f"{name}: dtype {array.dtype}, expected integers")
    if array.ndim == 0:
        if batch is None:
            raise InvalidArgument(f"{name}: one number, expected one for each sequence of a stored tensor")
        array = np.full(batch, array)
    return [int(number) for number in array.ravel()]


def _reply_bytes(tensors: Mapping[str, Wire | Stored], given: Mapping[str, Any], outputs: Iterable[str]) -> int:
    """At least so many, 4 bytes an element: what matrices of queries by keys hold, and the output's rows."""
    q, k, v, x = (tensors.get(name) for name in "qkvx")
    if isinstance(x, Wire):
        heads = given["projection"].q_heads if "projection" in given else 1
        rows, keys, width = heads * math.prod(x.shape[:2]), x.shape[1], 0
    elif isinstance(q, Wire) and isinstance(k, Wire) and isinstance(v, Wire):
        rows, keys, width = math.prod(q.shape[:3]), k.shape[1 if given.get("layout") == "bnhd" else 2], v.shape[3]
        if "page_table" in given:
            keys *= np.shape(given["page_table"])[-1]
    else:
        return 0
    matrices = sum(name == "weights" or name.startswith("scores_") for name in outputs)
    return 4 * rows * (width + matrices * keys)
