"""Arrays of anyone's kind into tensors of the wire, and back.

Taken: NumPy arrays (with ml_dtypes.bfloat16), torch tensors of any device, whatever has `__array__` or `__dlpack__`,
and nested lists of numbers with a point, which count as float32. Nothing here imports torch or ml_dtypes before
somebody uses them.
"""

from __future__ import annotations

import functools
import math
import sys
from dataclasses import dataclass
from typing import Any

import numpy as np

from attnd import _contract, _wire
from attnd._errors import Internal, InvalidArgument

FLOATS = ("float32", "float16", "bfloat16", "float64")
_TENSOR = _contract.message("Tensor")
_DATA = _contract.number(_TENSOR, "data")
_HALF = np.dtype("<u2")  # what bfloat16 travels through NumPy as where ml_dtypes is not there


@dataclass(frozen=True)
class Stored:
    """A tensor that was put on the server under this name (Client.put_tensor), in place of an array."""

    name: str

    def __post_init__(self) -> None:
        if not isinstance(self.name, str):
            raise InvalidArgument(f"Stored: {self.name!r}, expected a tensor's name")


@dataclass
class Wire:
    """An array as the wire has it: little-endian, row-major."""

    dtype: str  # a name of the contract
    shape: tuple[int, ...]
    data: np.ndarray[Any, Any]  # contiguous; its bytes are the tensor's

    def node(self) -> _wire.Node:
        head = _TENSOR(dtype=_contract.DTYPES[self.dtype], shape=self.shape)
        return _wire.Node(head, [("data", self.data)] if self.data.size else [])


def node_of(tensor: Wire | Stored) -> _wire.Node:
    return _wire.Node(_TENSOR(name=tensor.name)) if isinstance(tensor, Stored) else tensor.node()


def torch_of(value: Any) -> Any | None:
    """The torch module where `value` is a tensor of its."""
    torch = sys.modules.get("torch")
    return torch if torch is not None and isinstance(value, torch.Tensor) else None


def is_bool(array: Any) -> bool:
    """Whether an attention mask, as `plain` gives it, says which keys take part, and is no bias."""
    return str(array.dtype).rpartition(".")[2] in ("bool", "bool_")


def to_wire(name: str, value: Any, kinds: tuple[str, ...] = FLOATS) -> Wire:
    """`value` as the tensor `name`, in its own type, which must be one of `kinds`."""
    dtype, array = _elements(name, value)
    if kinds == ("int64",) and array.dtype.kind in "iu":
        dtype, array = "int64", array.astype("<i8", copy=False)
    if dtype not in kinds:
        raise InvalidArgument(f"{name}: dtype {dtype}, expected {' or '.join(kinds)}")
    if array.dtype.byteorder == ">" or (array.dtype.byteorder == "=" and sys.byteorder == "big"):
        array = array.astype(array.dtype.newbyteorder("<"))
    return Wire(dtype, array.shape, np.ascontiguousarray(array))


def plain(name: str, value: Any) -> Any:
    """`value` as what has a shape and a dtype: itself where it is of NumPy or torch, else an array of NumPy."""
    if isinstance(value, np.ndarray) or torch_of(value) is not None:
        return value
    try:
        if hasattr(value, "__array__"):
            return np.asarray(value)
        if hasattr(value, "__dlpack__"):
            return np.from_dlpack(value)
        array = np.asarray(value)  # numbers in lists
        return array.astype(np.float32) if array.dtype.kind == "f" else array
    except (TypeError, ValueError, RuntimeError, BufferError) as error:
        raise InvalidArgument(f"{name}: {type(value).__name__} is no array: {error}") from error


def _elements(name: str, value: Any) -> tuple[str, np.ndarray[Any, Any]]:
    """The type's name and the elements; bfloat16 may come as its bits."""
    array = plain(name, value)
    torch = torch_of(array)
    if torch is not None:
        try:
            array = array.detach().cpu()
            if array.dtype == torch.bfloat16:
                return "bfloat16", array.contiguous().view(torch.int16).numpy().view(_HALF)
            array = array.numpy()
        except (TypeError, ValueError, RuntimeError) as error:
            raise InvalidArgument(f"{name}: {type(value).__name__} is no array: {error}") from error
    return _dtype_name(array.dtype), array


@functools.cache
def _dtype_name(dtype: np.dtype[Any]) -> str:
    return str(dtype.newbyteorder("="))


def numpy_dtype(dtype: str) -> np.dtype[Any]:
    """Of a dtype of the contract. ImportError for bfloat16 where ml_dtypes is missing."""
    if dtype == "bfloat16":
        try:
            import ml_dtypes
        except ImportError as error:
            raise ImportError("NumPy has no bfloat16 of its own: pip install attnd[bfloat16]") from error
        bfloat16: np.dtype[Any] = np.dtype(ml_dtypes.bfloat16)
        return bfloat16
    return np.dtype(dtype).newbyteorder("<")


def view(dtype: int, data: memoryview) -> np.ndarray[Any, Any]:
    """A reply's elements where they lie, bfloat16 as its bits. Internal where they are no whole elements."""
    name = _contract.DTYPE_NAMES.get(dtype)
    if name is None:
        raise Internal(f"the server answered in dtype {dtype}, which this client does not know")
    kind = _HALF if name == "bfloat16" else numpy_dtype(name)
    if len(data) % kind.itemsize:
        raise Internal(f"the server answered {len(data)} bytes of {name}")
    return np.frombuffer(data, kind)


def shaped(elements: np.ndarray[Any, Any], shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
    """Internal where the reply's bytes are not what its shape promises."""
    if min(shape, default=0) < 0 or math.prod(shape) != elements.size:
        raise Internal(f"the server answered {elements.size} elements for {shape_text(shape)}")
    return elements.reshape(shape)


def give(dtype: int, array: np.ndarray[Any, Any], like: Any) -> Any:
    """A reply's array, bfloat16 still as its bits, for the caller: of torch, on its device, where `like` is."""
    name = _contract.DTYPE_NAMES[dtype]
    torch = torch_of(like)
    if torch is None:
        return array.view(numpy_dtype(name)) if name == "bfloat16" else array
    if name == "bfloat16":
        tensor = torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    else:
        tensor = torch.from_numpy(array)
    return tensor.to(like.device)


def read_tensor(message: memoryview) -> tuple[int, np.ndarray[Any, Any]]:
    """dtype and array of a Tensor message; the array is a copy, aligned and writable."""
    rest, data = _wire.take(message, _DATA)
    tensor = _TENSOR.FromString(rest)
    return tensor.dtype, shaped(view(tensor.dtype, data), tuple(tensor.shape)).copy()


def shape_text(shape: tuple[int, ...]) -> str:
    return f"[{','.join(map(str, shape))}]"
