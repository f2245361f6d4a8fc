"""Every call as what goes out and how its reply is read, without the calling: that is the clients'."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import numpy as np

from attnd import _arrays, _contract, _wire
from attnd._connection import seconds
from attnd._errors import InvalidArgument, reading
from attnd._problem import Answer, Problem, Projection, Rotary, projection_node, record, rotary_node

T = TypeVar("T")
_DATA_BYTES = 1 << 20  # of a tensor that is put, in one message


@dataclass(frozen=True)
class Call(Generic[T]):
    method: str  # of METHODS
    request: Any  # bytes, or an iterator of them where the method takes a stream
    read: Callable[[bytes], T]


@dataclass(frozen=True)
class Plan:
    """What a problem would cost. A multiply-add is one multiplication with one addition, two FLOPs."""

    scores_per_head: int  # Nq * Nk
    multiply_adds_per_head: int  # Nq * Nk * (d_k + d_v)
    multiply_adds: int  # the whole problem, all sequences, heads and layers, with projections
    flops: int
    flops_after_exclusion: int  # what is left when lengths and the causal frontier skip keys
    request_bytes: int  # one layer
    reply_bytes: int  # one layer
    memory: Mapping[str, int]  # bytes that the server would hold for it, by what for, one layer
    memory_bytes: int
    naive_score_bytes: int  # of float32 score matrices that never exist, all heads and layers
    predicted_compute_us: int  # microseconds with nothing else running
    admitted: bool  # whether the server would take it when idle
    refusal: str  # why not, else empty


@dataclass(frozen=True)
class Info:
    """What a server is, has and allows."""

    version: str
    instruction_set_used: str
    threads: int
    limits: Mapping[str, int]  # by the name of the flag that sets them
    dtypes: tuple[str, ...]  # taken for q, k and v
    memory_bytes_used: int  # reserved now
    memory_peak_resident_bytes: int


@dataclass(frozen=True)
class StoredTensor:
    """What the server has under a tensor's name."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    append_axis: int | None  # the dimension along which rows may be appended
    capacity: int  # of that dimension
    bytes: int  # of memory, with its capacity
    ttl_ms: int  # milliseconds without a use after which it goes
    calls: int  # that read it now


@dataclass(frozen=True)
class StoredWeightSet:
    """What the server has under a weight set's name and version."""

    name: str
    version: int
    q_heads: int
    kv_heads: int
    shapes: Mapping[str, tuple[int, ...]]  # of the tensors it has: w_* as [in, out] whatever came
    dtypes: Mapping[str, str]  # theirs
    bytes: int  # of memory
    from_file: bool  # the operator's: no call changes it
    calls: int  # that read it now
    owner: str  # empty: everyone's


def attend(problem: Problem) -> Call[Answer]:
    return Call("Attend", problem.request.encode(), problem.read)


def plan(problem: Problem, layers: int) -> Call[Plan]:
    for _ in problem.request.take_bytes():
        pass  # shapes and types are all that is asked about
    request = _wire.Node(_contract.filled("PlanRequest", layers=layers), [("problem", problem.request)])

    def read(reply: Any) -> Plan:
        found: Plan = record(Plan, reply, memory={item.name: item.bytes for item in reply.memory})
        return found

    return Call("Plan", request.encode(), _reader("PlanResponse", read))


def info() -> Call[Info]:
    def read(reply: Any) -> Info:
        limits = {limit.flag: limit.value for limit in reply.limits}
        dtypes = tuple(_contract.DTYPE_NAMES[dtype] for dtype in reply.dtypes if dtype in _contract.DTYPE_NAMES)
        found: Info = record(Info, reply, limits=limits, dtypes=dtypes)
        return found

    return Call("Info", b"", _reader("InfoResponse", read))


def put_tensor(
    name: str, array: Any, append_axis: int | None, capacity: int | None, ttl_s: float | None
) -> Call[StoredTensor]:
    tensor = _arrays.to_wire(name, array, tuple(_contract.DTYPES))
    header = _wire.Node(
        _contract.filled(
            "PutTensorHeader", name=name, append_axis=append_axis, capacity=capacity, ttl_ms=_ttl_ms(ttl_s)
        ),
        [("tensor", tensor.node())],
    )
    request = _contract.message("PutTensorRequest")

    def messages() -> Iterator[bytes]:
        data = [part for _, part in header.take_bytes()]
        yield _wire.Node(request(), [("header", header)]).encode()
        for elements in data:
            flat = elements.reshape(-1).view(np.uint8)
            for at in range(0, flat.nbytes, _DATA_BYTES):
                yield _wire.Node(request(), [("data", flat[at : at + _DATA_BYTES])]).encode()

    return Call("PutTensor", messages(), _reader("PutTensorResponse", lambda reply: stored_tensor(reply.tensor)))


def append_tensors(rows: Mapping[str, Any], length_before: int | None) -> Call[list[StoredTensor]]:
    request = _wire.Node(_contract.message("AppendTensorsRequest")())
    for name, array in rows.items():
        tensor = _arrays.to_wire(name, array, tuple(_contract.DTYPES))
        head = _contract.filled("TensorAppend", name=name, length_before=length_before)
        request.parts.append(("appends", _wire.Node(head, [("rows", tensor.node())])))
    read = _reader("AppendTensorsResponse", lambda reply: [stored_tensor(tensor) for tensor in reply.tensors])
    return Call("AppendTensors", request.encode(), read)


def get_tensor(name: str) -> Call[StoredTensor]:
    return _named("GetTensor", lambda reply: stored_tensor(reply.tensor), name=name)


def list_tensors() -> Call[list[StoredTensor]]:
    return _named("ListTensors", lambda reply: [stored_tensor(tensor) for tensor in reply.tensors])


def delete_tensor(name: str) -> Call[None]:
    return _named("DeleteTensor", lambda reply: None, name=name)


def put_weight_set(
    name: str, projection: Projection, version: int | None, rotary: Rotary | None
) -> Call[StoredWeightSet]:
    head = _contract.filled("PutWeightSetRequest", name=name, version=version)
    request = _wire.Node(head, [("projection", projection_node(projection))])
    if rotary is not None:
        request.parts.append(("rotary", rotary_node(rotary)))
    read = _reader("PutWeightSetResponse", lambda reply: stored_weight_set(reply.weight_set))
    return Call("PutWeightSet", request.encode(), read)


def get_weight_set(name: str, version: int | None) -> Call[StoredWeightSet]:
    return _named("GetWeightSet", lambda reply: stored_weight_set(reply.weight_set), name=name, version=version)


def list_weight_sets() -> Call[list[StoredWeightSet]]:
    return _named("ListWeightSets", lambda reply: [stored_weight_set(found) for found in reply.weight_sets])


def delete_weight_set(name: str, version: int | None) -> Call[None]:
    return _named("DeleteWeightSet", lambda reply: None, name=name, version=version)


def stored_tensor(message: Any) -> StoredTensor:
    found: StoredTensor = record(
        StoredTensor,
        message,
        dtype=_contract.DTYPE_NAMES[message.dtype],
        append_axis=message.append_axis if message.HasField("append_axis") else None,
    )
    return found


def stored_weight_set(message: Any) -> StoredWeightSet:
    tensors = {
        field.name: value for field, value in message.projection.ListFields() if field.name.startswith(("w_", "b_"))
    }
    found: StoredWeightSet = record(
        StoredWeightSet,
        message,
        q_heads=message.projection.q_heads,
        kv_heads=message.projection.kv_heads,
        shapes={name: tuple(tensor.shape) for name, tensor in tensors.items()},
        dtypes={name: _contract.DTYPE_NAMES[tensor.dtype] for name, tensor in tensors.items()},
    )
    return found


def _named(method: str, read: Callable[[Any], T], **request: Any) -> Call[T]:
    """A call whose messages are called after its method."""
    message = _contract.filled(f"{method}Request", **request)
    return Call(method, message.SerializeToString(), _reader(f"{method}Response", read))


def _reader(message: str, read: Callable[[Any], T]) -> Callable[[bytes], T]:
    kind = _contract.message(message)

    def read_bytes(reply: bytes) -> T:
        with reading():
            return read(kind.FromString(reply))

    return read_bytes


def _ttl_ms(ttl_s: float | None) -> int:
    if ttl_s is None:
        return 0
    ttl_s = seconds("ttl", ttl_s)
    if ttl_s <= 0:
        raise InvalidArgument(f"ttl: {ttl_s} s, expected more than 0")
    return max(1, round(ttl_s * 1000))
