"""The same client for asyncio: what attnd.Client does, as coroutines.

    async with attnd.aio.connect("127.0.0.1:50051") as client:
        output = await client.scaled_dot_product_attention(q, k, v)

A task that is cancelled gives its call up, and the server stops working at it.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Any, TypeVar, Unpack

import grpc
import grpc.aio

from attnd import _calls, _contract, _errors, _problem, _retry, _stream
from attnd._calls import Call, Info, Plan, StoredTensor, StoredWeightSet
from attnd._client import MESSAGE_BYTES
from attnd._connection import TIMEOUT_S, Connection, Security, connection, seconds
from attnd._problem import Answer, Options, Problem, Projection, Rotary, Statistics, Tensor, record
from attnd._stream import Block

T = TypeVar("T")


def connect(
    target: str, *, timeout: float = TIMEOUT_S, attempts: int = _retry.ATTEMPTS, **security: Unpack[Security]
) -> "Client":
    """As attnd.connect; to be called where an event loop runs, which the client belongs to."""
    return Client(connection(target, **security), timeout, attempts)


class Client:
    """As attnd.Client, for one event loop: the same methods, arguments, answers and errors."""

    def __init__(self, connection: Connection, timeout: float, attempts: int = _retry.ATTEMPTS) -> None:
        if connection.credentials is None:
            self._channel = grpc.aio.insecure_channel(connection.target, connection.options)
        else:
            self._channel = grpc.aio.secure_channel(connection.target, connection.credentials, connection.options)
        self._target = connection.target
        self._metadata = connection.metadata
        self._timeout = seconds("timeout", timeout)
        self._attempts = attempts
        self._budget = _retry.Budget()
        self._methods = _contract.callables(self._channel)
        self._closed = False

    def __repr__(self) -> str:
        return f"<attnd.aio.Client of {self._target}{', closed' if self._closed else ''}>"

    async def close(self) -> None:
        """Ends the connection, and every call on it with Cancelled."""
        self._closed = True
        await self._channel.close()

    async def __aenter__(self) -> "Client":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def scaled_dot_product_attention(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attn_mask: Tensor = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        *,
        scale: float | None = None,
        enable_gqa: bool = False,
        timeout: float | None = None,
    ) -> Any:
        """As attnd.Client.scaled_dot_product_attention."""
        with _problem.in_pytorchs_words():
            problem = _problem.sdpa(query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa)
            return (await self._answer(problem, None, timeout)).output

    async def attend(
        self,
        q: Tensor = None,
        k: Tensor = None,
        v: Tensor = None,
        *,
        stream: bool | None = None,
        timeout: float | None = None,
        **options: Unpack[Options],
    ) -> Answer:
        """As attnd.Client.attend."""
        return await self._answer(_problem.problem(q, k, v, **options), stream, timeout)

    def attend_stream(
        self,
        q: Tensor = None,
        k: Tensor = None,
        v: Tensor = None,
        *,
        timeout: float | None = None,
        **options: Unpack[Options],
    ) -> "BlockStream":
        """As attnd.Client.attend_stream: `async with` and `async for`."""
        return self._open(_problem.problem(q, k, v, **options), self._seconds(timeout))

    async def plan(
        self,
        q: Tensor = None,
        k: Tensor = None,
        v: Tensor = None,
        *,
        layers: int = 1,
        timeout: float | None = None,
        **options: Unpack[Options],
    ) -> Plan:
        """As attnd.Client.plan."""
        return await self._call(_calls.plan(_problem.problem(q, k, v, **options), layers), timeout)

    async def info(self, *, timeout: float | None = None) -> Info:
        """As attnd.Client.info."""
        return await self._call(_calls.info(), timeout)

    async def put_tensor(
        self,
        name: str,
        array: Any,
        *,
        append_axis: int | None = None,
        capacity: int | None = None,
        ttl: float | None = None,
        timeout: float | None = None,
    ) -> StoredTensor:
        """As attnd.Client.put_tensor."""
        return await self._call(_calls.put_tensor(name, array, append_axis, capacity, ttl), timeout)

    async def append(
        self, rows: Mapping[str, Any], *, length_before: int | None = None, timeout: float | None = None
    ) -> list[StoredTensor]:
        """As attnd.Client.append."""
        return await self._call(_calls.append_tensors(rows, length_before), timeout)

    async def get_tensor(self, name: str, *, timeout: float | None = None) -> StoredTensor:
        """As attnd.Client.get_tensor."""
        return await self._call(_calls.get_tensor(name), timeout)

    async def list_tensors(self, *, timeout: float | None = None) -> list[StoredTensor]:
        """As attnd.Client.list_tensors."""
        return await self._call(_calls.list_tensors(), timeout)

    async def delete_tensor(self, name: str, *, timeout: float | None = None) -> None:
        """As attnd.Client.delete_tensor."""
        await self._call(_calls.delete_tensor(name), timeout)

    async def put_weight_set(
        self,
        name: str,
        projection: Projection,
        *,
        version: int | None = None,
        rotary: Rotary | None = None,
        timeout: float | None = None,
    ) -> StoredWeightSet:
        """As attnd.Client.put_weight_set."""
        return await self._call(_calls.put_weight_set(name, projection, version, rotary), timeout)

    async def get_weight_set(
        self, name: str, version: int | None = None, *, timeout: float | None = None
    ) -> StoredWeightSet:
        """As attnd.Client.get_weight_set."""
        return await self._call(_calls.get_weight_set(name, version), timeout)

    async def list_weight_sets(self, *, timeout: float | None = None) -> list[StoredWeightSet]:
        """As attnd.Client.list_weight_sets."""
        return await self._call(_calls.list_weight_sets(), timeout)

    async def delete_weight_set(self, name: str, version: int | None = None, *, timeout: float | None = None) -> None:
        """As attnd.Client.delete_weight_set."""
        await self._call(_calls.delete_weight_set(name, version), timeout)

    # The calls themselves.

    def _seconds(self, timeout: float | None) -> float:
        return self._timeout if timeout is None else seconds("timeout", timeout)

    def _begun(self, method: str, request: Any, timeout: float) -> Any:
        """What gRPC gives for a call: its reply to be awaited, or a stream of them."""
        _errors.check_time(timeout)
        try:
            return self._methods[method](request, timeout=timeout, metadata=self._metadata)
        except grpc.aio.UsageError:
            raise _errors.closed() from None

    async def _once(self, call: Call[T], timeout: float) -> T:
        try:
            reply = await self._begun(call.method, call.request, timeout)
        except grpc.RpcError as error:
            raise _errors.of_rpc(error) from None
        except grpc.aio.UsageError:
            raise _errors.closed() from None
        return call.read(reply)

    async def _call(self, call: Call[T], timeout: float | None) -> T:
        if call.method not in _retry.SAFE:
            return await self._once(call, self._seconds(timeout))
        return await self._asked(lambda left: self._once(call, left), timeout)

    async def _asked(self, once: Callable[[float], Awaitable[T]], timeout: float | None) -> T:
        """Asks, and asks again where that may help; `once` is told how many seconds are left."""
        retries = _retry.Retries(self._attempts, self._budget, time.monotonic() + self._seconds(timeout))
        while True:
            try:
                answer = await once(retries.seconds_left(time.monotonic()))
            except _errors.Error as error:
                wait = retries.wait_after(error, time.monotonic(), random.random())
                if wait is None:
                    raise
            else:
                self._budget.answered()
                return answer
            await asyncio.sleep(wait)

    def _open(self, problem: Problem, timeout: float) -> "BlockStream":
        return BlockStream(
            self._begun("AttendStream", _stream.messages(problem), timeout), _stream.Replies(problem)
        )

    async def _answer(self, problem: Problem, stream: bool | None, timeout: float | None) -> Answer:
        if not (problem.message_bytes > MESSAGE_BYTES if stream is None else stream):
            return await self._call(_calls.attend(problem), timeout)

        async def once(left: float) -> Answer:
            if problem.has_w_o is None:
                problem.pin(await self._once(_calls.get_weight_set(*problem.weight_set()), left))
            async with self._open(problem.copy(), left) as blocks:
                return await blocks.answer()

        return await self._asked(once, timeout)


class BlockStream(AsyncIterator[Block]):
    """As attnd.BlockStream: `async for` its blocks, `async with` it to give the call up at the end."""

    def __init__(self, call: Any, replies: _stream.Replies) -> None:
        self._call = call
        self._replies_of_call = aiter(call)
        self._replies = replies

    async def __anext__(self) -> Block:
        block = self._replies.block(await self._read())
        return await self.__anext__() if block is None else block  # the stream ends after the problem has

    async def answer(self) -> Answer:
        """As attnd.BlockStream.answer."""
        try:
            while True:
                self._replies.keep(await self._read())
        except StopAsyncIteration:
            return self._replies.answer()

    @property
    def statistics(self) -> Statistics | None:
        """As attnd.BlockStream.statistics."""
        closing = self._replies.closing
        return None if closing is None else record(Statistics, closing.statistics)

    def close(self) -> None:
        self._call.cancel()

    async def __aenter__(self) -> "BlockStream":
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()

    async def _read(self) -> bytes:
        try:
            return bytes(await anext(self._replies_of_call))
        except grpc.RpcError as error:
            raise _errors.of_rpc(error, self._call.time_remaining()) from None
