"""Messages with large bytes, written and read without protobuf copying those bytes: the format is plain protobuf.

Writing: a Node is a message without its large parts, and the parts beside it; its chunks, joined, are the message.
Reading: `fields` walks a message's fields where they lie.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

VARINT, FIXED64, LENGTH, FIXED32 = 0, 1, 2, 5


def varint(value: int) -> bytes:
    """`value` >= 0 in seven bits a byte, the lowest first."""
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


@dataclass
class Node:
    """`head` with further fields, each a Node or a contiguous array; the name of a repeated field comes repeatedly."""

    head: Any
    parts: list[tuple[str, "Node | np.ndarray[Any, Any]"]] = field(default_factory=list)

    def chunks(self) -> tuple[list[Any], int]:
        """What the message's bytes are when joined, and how many there are."""
        out: list[Any] = [self.head.SerializeToString()]
        size = len(out[0])
        numbers = self.head.DESCRIPTOR.fields_by_name
        for name, part in self.parts:
            inner, inner_size = part.chunks() if isinstance(part, Node) else ([part], part.nbytes)
            lead = varint(numbers[name].number << 3 | LENGTH) + varint(inner_size)
            out.append(lead)
            out += inner
            size += len(lead) + inner_size
        return out, size

    def encode(self) -> bytes:
        return b"".join(self.chunks()[0])

    def copy(self) -> "Node":
        """Another tree over the same heads and arrays, so that `take_bytes` leaves this one as it is."""
        return Node(self.head, [(name, part.copy() if isinstance(part, Node) else part) for name, part in self.parts])

    def large_bytes(self) -> int:
        """What all arrays in the tree hold."""
        return sum(part.large_bytes() if isinstance(part, Node) else part.nbytes for _, part in self.parts)

    def take_bytes(self, path: str = "") -> Iterator[tuple[str, "np.ndarray[Any, Any]"]]:
        """Takes every `data` out of the tree: yields the path of its message ("options.mask") and the bytes."""
        for name, part in self.parts:
            if isinstance(part, Node):
                yield from part.take_bytes(f"{path}.{name}" if path else name)
            else:
                yield path, part
        self.parts = [(name, part) for name, part in self.parts if isinstance(part, Node)]


def fields(message: memoryview) -> Iterator[tuple[int, int | memoryview, memoryview]]:
    """(number, value, the field as it lies there): an int for a varint, bytes for everything else. ValueError for what
    is no message."""
    at = 0
    while at < len(message):
        start = at
        key, at = _read_varint(message, at)
        kind = key & 7
        if kind == VARINT:
            value, at = _read_varint(message, at)
            yield key >> 3, value, message[start:at]
            continue
        if kind == LENGTH:
            size, at = _read_varint(message, at)
        elif kind in (FIXED32, FIXED64):
            size = 4 if kind == FIXED32 else 8
        else:
            raise ValueError(f"wire type {kind}")
        if size > len(message) - at:
            raise ValueError("a field is longer than its message")
        at += size
        yield key >> 3, message[at - size : at], message[start:at]


def _read_varint(message: memoryview, at: int) -> tuple[int, int]:
    value = shift = 0
    while at < len(message) and shift < 70:
        byte = message[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
    raise ValueError("a number without an end")


def values(message: memoryview, number: int) -> Iterator[memoryview]:
    """What the fields of that number hold, where they are no varints."""
    for which, value, _ in fields(message):
        if which == number and isinstance(value, memoryview):
            yield value


def take(message: memoryview, number: int) -> tuple[bytes, memoryview]:
    """The message without its field of that number, for protobuf, and that field's bytes where they lie."""
    rest, taken = [], memoryview(b"")
    for which, value, whole in fields(message):
        if which == number and isinstance(value, memoryview):
            taken = value
        else:
            rest.append(whole)
    return b"".join(rest), taken
