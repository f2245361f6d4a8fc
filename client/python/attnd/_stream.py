"""AttendStream with one problem: its messages, and the blocks that come back, without the calls themselves."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from attnd import _arrays, _contract, _errors, _wire
from attnd._errors import Internal, reading
from attnd._problem import Answer, Problem, output_name

PIECE_BYTES = 1 << 20  # most tensor bytes in one message
_PROBLEM_ID = 1
_REQUEST = _contract.message("AttendStreamRequest")
_PIECE = _contract.message("TensorPiece")
_RESPONSE = _contract.message("AttendStreamResponse")
_BLOCK = _contract.message("Block")
_CLOSING = _contract.message("ProblemClosing")
_BLOCK_FIELD, _CLOSING_FIELD = (_contract.number(_RESPONSE, name) for name in ("block", "closing"))
_DATA_FIELD = _contract.number(_BLOCK, "data")
# Rows are answered as queries come, and a query needs its keys.
_LAST = ("x", "k", "v", "q")


@dataclass(frozen=True)
class Block:
    """Rows [first_row, first_row + rows) of columns [first_column, first_column + columns) of one tensor.

    `array` is [rows, columns], of the kind that the caller's arrays are. Places count in [B, H, N, columns], whatever
    the layout; `head` is 0 where the tensor has none, and an LSE has one column.
    """

    output: str
    batch: int
    head: int
    first_row: int
    first_column: int
    array: Any


def messages(problem: Problem) -> Iterator[bytes]:
    """The header, then the tensors in pieces; takes the tensors out of `problem`."""
    tensors = list(problem.request.take_bytes())
    tensors.sort(key=lambda tensor: _LAST.index(tensor[0]) if tensor[0] in _LAST else -1)
    yield _wire.Node(_REQUEST(problem_id=_PROBLEM_ID), [("header", problem.request)]).encode()
    while tensors:
        path, array = tensors.pop(0)
        data = array.reshape(-1).view(np.uint8)
        for at in range(0, data.nbytes, PIECE_BYTES):
            piece = _wire.Node(_PIECE(tensor=path, offset_bytes=at), [("data", data[at : at + PIECE_BYTES])])
            yield _wire.Node(_REQUEST(problem_id=_PROBLEM_ID), [("piece", piece)]).encode()


class Replies:
    """What has come of a problem: blocks as they come, then how it ended."""

    def __init__(self, problem: Problem) -> None:
        self._problem = problem
        self._blocks: dict[str, list[tuple[Any, np.ndarray[Any, Any]]]] = {}
        self.closing: Any = None

    def take(self, reply: bytes) -> tuple[Any, np.ndarray[Any, Any]] | None:
        """A block and its elements, or None for the end. The problem's error is raised."""
        with reading():
            for number, value, _ in _wire.fields(memoryview(reply)):
                if isinstance(value, int):
                    continue
                if number == _BLOCK_FIELD:
                    rest, data = _wire.take(value, _DATA_FIELD)
                    block = _BLOCK.FromString(rest)
                    return block, _arrays.shaped(_arrays.view(block.dtype, data), (block.rows, block.columns))
                if number == _CLOSING_FIELD:
                    self.closing = _CLOSING.FromString(bytes(value))
        if self.closing is None:
            raise Internal("the server's answer holds neither a block nor an end")
        if self.closing.HasField("error"):
            raise _errors.of_number(self.closing.error.code, self.closing.error.message)
        return None

    def block(self, reply: bytes) -> Block | None:
        """The same for the caller; the array is a copy."""
        taken = self.take(reply)
        if taken is None:
            return None
        block, elements = taken
        return Block(
            output=output_name(block.kind),
            batch=block.batch,
            head=block.head,
            first_row=block.first_row,
            first_column=block.first_column,
            array=_arrays.give(block.dtype, elements.copy(), self._problem.like),
        )

    def keep(self, reply: bytes) -> None:
        """Keeps a block for `answer`."""
        taken = self.take(reply)
        if taken is not None:
            self._blocks.setdefault(output_name(taken[0].kind), []).append(taken)

    def answer(self) -> Answer:
        """The blocks put together. Internal where they do not cover their tensors."""
        if self.closing is None:
            raise Internal("the stream ended before the problem did")
        tensors = {}
        for output in self.closing.outputs:
            name = output_name(output.kind)
            tensors[name] = (output.dtype, self._joined(name, output))
        return self._problem.answer(tensors, self.closing.statistics)

    def _joined(self, name: str, output: Any) -> np.ndarray[Any, Any]:
        shape = tuple(output.shape)  # [B, H, N, columns]
        blocks = self._blocks.pop(name, [])
        came = sum(elements.size for _, elements in blocks)
        if len(shape) != 4 or min(shape) < 0 or math.prod(shape) != came:
            raise Internal(f"the server answered {came} elements of {name} for {_arrays.shape_text(shape)}")
        whole = np.empty(shape, _arrays.view(output.dtype, memoryview(b"")).dtype)
        while blocks:  # each is let go when it has been copied
            block, elements = blocks.pop()
            rows = slice(block.first_row, block.first_row + block.rows)
            columns = slice(block.first_column, block.first_column + block.columns)
            place = whole[block.batch : block.batch + 1, block.head : block.head + 1, rows, columns]
            if place.shape != (1, 1, *elements.shape):
                raise Internal(f"the server answered a block beyond {name}")
            place[:] = elements
        return self._problem.in_reply_order(name, whole)
