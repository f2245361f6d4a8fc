"""The client that waits for its answers."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar, Unpack

import grpc

from attnd import _calls, _contract, _errors, _problem, _retry, _stream
from attnd._calls import Call, Info, Plan, StoredTensor, StoredWeightSet
from attnd._connection import TIMEOUT_S, Connection, Security, connection, seconds
from attnd._problem import Answer, Options, Problem, Projection, Rotary, Statistics, Tensor, record
from attnd._stream import Block

T = TypeVar("T")

# Problems whose tensors are larger, there or back, travel on a stream. Below, one message costs less, and its refusals
# say when to come again.
MESSAGE_BYTES = 64 << 20


def connect(
    target: str, *, timeout: float = TIMEOUT_S, attempts: int = _retry.ATTEMPTS, **security: Unpack[Security]
) -> "Client":
    """A client of the server at `target`: host:port, unix:path, or any target of gRPC's.

    tls                    TLS with the system's authorities; also on when one of the next four is given
    tls_ca                 authorities that the server's certificate must come from: a PEM file, or its bytes
    tls_certificate        this client's own certificate with its chain, likewise; with tls_key
    tls_key                its private key, likewise
    tls_server_name        what the server's certificate must name instead of the target's host
    token, token_file      sent as `authorization: Bearer ...` with every call, over TLS, Unix sockets and loopback only
    allow_plaintext_token  also where anyone on the way can read it
    timeout                seconds of a call that gives none
    attempts               how often a call that changes nothing may be asked, the first time included; 1: once

    The connection is made by the first call. NotFound, InvalidArgument or FailedPrecondition for what is given here.
    """
    return Client(connection(target, **security), timeout, attempts)


class Client:
    """Calls one server, from any number of threads. A context manager; `close` ends the connection.

    Every method takes `timeout`, in seconds, and raises attnd.Error of the kind that fits, with the server's own words:
    InvalidArgument, ResourceExhausted (its `retry_after_s` says when to come again), DeadlineExceeded, Unavailable,
    Unauthenticated, PermissionDenied and the like. FailedPrecondition once the client is closed.

    What changes nothing on the server (`attend`, `scaled_dot_product_attention`, `plan`, `info`, `get_...`, `list_...`)
    is asked again, within its timeout and `attempts`, where no server answered or the server said when to come again.
    """

    def __init__(self, connection: Connection, timeout: float, attempts: int = _retry.ATTEMPTS) -> None:
        if connection.credentials is None:
            self._channel = grpc.insecure_channel(connection.target, connection.options)
        else:
            self._channel = grpc.secure_channel(connection.target, connection.credentials, connection.options)
        self._target = connection.target
        self._metadata = connection.metadata
        self._timeout = seconds("timeout", timeout)
        self._attempts = attempts
        self._budget = _retry.Budget()
        self._methods = _contract.callables(self._channel)
        self._closed = False

    def __repr__(self) -> str:
        return f"<attnd.Client of {self._target}{', closed' if self._closed else ''}>"

    def close(self) -> None:
        """Ends the connection, and every call on it with Cancelled."""
        self._closed = True
        self._channel.close()

    def __enter__(self) -> "Client":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # Attention.

    def scaled_dot_product_attention(
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
        """PyTorch's function of this name: softmax(query key^T scale + mask) value.

        query       [B, Hq, Nq, d_k], [B, Nq, d_k] or [Nq, d_k]: float32, float16 or bfloat16
        key         [B, Hkv, Nk, d_k], of the same rank
        value       [B, Hkv, Nk, d_v], of the same rank
        attn_mask   broadcast to [B, Hq, Nq, Nk]: bool, where True takes part, or float, which is added to the scores
        dropout_p   must be 0
        is_causal   row i sees keys 0 to i: from the top left corner, also where Nq and Nk differ. Not with attn_mask
        scale       absent: 1 / sqrt(d_k)
        enable_gqa  Hq may be a multiple of Hkv; query head h reads key head h // (Hq / Hkv)

        Returns [B, Hq, Nq, d_v] in query's rank and type, of torch where query is a torch tensor, else of NumPy. A row
        without any key is 0. InvalidArgument names the argument, what came and what was expected.
        """
        with _problem.in_pytorchs_words():
            problem = _problem.sdpa(query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa)
            return self._answer(problem, None, timeout).output

    def attend(
        self,
        q: Tensor = None,
        k: Tensor = None,
        v: Tensor = None,
        *,
        stream: bool | None = None,
        timeout: float | None = None,
        **options: Unpack[Options],
    ) -> Answer:
        """Attention with everything that the server offers.

        q       [B, Hq, Nq, d_k], or [B, Nq, d_k] (one head), or [Nq, d_k] (one sequence, one head)
        k, v    [B, Hkv, Nk, d_k] and [B, Hkv, Nk, d_v], of the same rank; Hkv divides Hq
        stream  whether the tensors travel in pieces, of any size; absent: where they hold more than 64 MiB

        Any tensor may be attnd.Stored("name"), one that the server has. attnd.Options has the keywords, with shapes
        and units; the server's contract says what each means. Answers have q's (or x's) rank.

            client.attend(q, k, v, causal=True, outputs=["lse", "weights"]).weights
            client.attend(x=x, projection=attnd.Projection(q_heads=8, kv_heads=8, w_q=w_q, w_k=w_k, w_v=w_v)).output

        `causal` counts from the bottom right: the last query sees the last key, unless q_offset says otherwise.
        """
        return self._answer(_problem.problem(q, k, v, **options), stream, timeout)

    def attend_stream(
        self,
        q: Tensor = None,
        k: Tensor = None,
        v: Tensor = None,
        *,
        timeout: float | None = None,
        **options: Unpack[Options],
    ) -> "BlockStream":
        """The same, row by row: an iterator of attnd.Block, of no certain order, while the server still computes. It
        is asked once.

        with client.attend_stream(q, k, v, outputs="weights") as blocks:
            for block in blocks: ...
        """
        return self._open(_problem.problem(q, k, v, **options), self._seconds(timeout))

    def plan(
        self,
        q: Tensor = None,
        k: Tensor = None,
        v: Tensor = None,
        *,
        layers: int = 1,
        timeout: float | None = None,
        **options: Unpack[Options],
    ) -> Plan:
        """What `attend` would cost, without computing it; only shapes and types are sent. `layers` multiplies it."""
        return self._call(_calls.plan(_problem.problem(q, k, v, **options), layers), timeout)

    def info(self, *, timeout: float | None = None) -> Info:
        """What the server is, has and allows."""
        return self._call(_calls.info(), timeout)

    # Tensors and weight sets by name: 1 to 64 of a-z, 0-9, '.', '_' and '-'. NotFound where there is none.

    def put_tensor(
        self,
        name: str,
        array: Any,
        *,
        append_axis: int | None = None,
        capacity: int | None = None,
        ttl: float | None = None,
        timeout: float | None = None,
    ) -> StoredTensor:
        """Keeps `array` on the server under `name`, in place of what had it; attnd.Stored(name) stands for it in calls.
        Until it has come, both take room: where there is none for both, delete the old one first.

        append_axis  the dimension along which `append` adds rows: 2 for k and v of [B, H, N, d]
        capacity     the most that dimension may ever be; its memory is taken now. With append_axis
        ttl          seconds without a use after which it goes; absent: the server's store_ttl_ms, also the most
        """
        return self._call(_calls.put_tensor(name, array, append_axis, capacity, ttl), timeout)

    def append(
        self, rows: Mapping[str, Any], *, length_before: int | None = None, timeout: float | None = None
    ) -> list[StoredTensor]:
        """Appends to the tensors of these names: to all or, where one cannot be, to none.

        rows           name -> an array of the stored type and shape, but for the append_axis
        length_before  how long each must be before; FailedPrecondition where one is not, so that it may be asked again
        """
        return self._call(_calls.append_tensors(rows, length_before), timeout)

    def get_tensor(self, name: str, *, timeout: float | None = None) -> StoredTensor:
        """What is stored under a name, without its bytes."""
        return self._call(_calls.get_tensor(name), timeout)

    def list_tensors(self, *, timeout: float | None = None) -> list[StoredTensor]:
        """All of the caller's, by name."""
        return self._call(_calls.list_tensors(), timeout)

    def delete_tensor(self, name: str, *, timeout: float | None = None) -> None:
        """Takes the name away at once; the bytes go when the last call that reads them ends."""
        self._call(_calls.delete_tensor(name), timeout)

    def put_weight_set(
        self,
        name: str,
        projection: Projection,
        *,
        version: int | None = None,
        rotary: Rotary | None = None,
        timeout: float | None = None,
    ) -> StoredWeightSet:
        """Makes a weight set that every call may name (`attend(x=x, weight_set=name)`).

        version  above 0; absent: one more than the newest. AlreadyExists for one that is there
        rotary   for calls that have none of their own; without positions
        """
        return self._call(_calls.put_weight_set(name, projection, version, rotary), timeout)

    def get_weight_set(self, name: str, version: int | None = None, *, timeout: float | None = None) -> StoredWeightSet:
        """One version, or the newest."""
        return self._call(_calls.get_weight_set(name, version), timeout)

    def list_weight_sets(self, *, timeout: float | None = None) -> list[StoredWeightSet]:
        """All, by name and version."""
        return self._call(_calls.list_weight_sets(), timeout)

    def delete_weight_set(self, name: str, version: int | None = None, *, timeout: float | None = None) -> None:
        """Takes away one version, or all of a name."""
        self._call(_calls.delete_weight_set(name, version), timeout)

    # The calls themselves.

    def _seconds(self, timeout: float | None) -> float:
        return self._timeout if timeout is None else seconds("timeout", timeout)

    def _begun(self, method: str, request: Any, timeout: float) -> Any:
        """What gRPC gives for a call: its reply, or a stream of them."""
        _errors.check_time(timeout)
        try:
            return self._methods[method](request, timeout=timeout, metadata=self._metadata)
        except grpc.RpcError as error:
            raise _errors.of_rpc(error) from None
        except ValueError:
            if not self._closed:
                raise
            raise _errors.closed() from None

    def _once(self, call: Call[T], timeout: float) -> T:
        return call.read(self._begun(call.method, call.request, timeout))

    def _call(self, call: Call[T], timeout: float | None) -> T:
        if call.method not in _retry.SAFE:
            return self._once(call, self._seconds(timeout))
        return self._asked(lambda left: self._once(call, left), timeout)

    def _asked(self, once: Callable[[float], T], timeout: float | None) -> T:
        """Asks, and asks again where that may help; `once` is told how many seconds are left."""
        retries = _retry.Retries(self._attempts, self._budget, time.monotonic() + self._seconds(timeout))
        while True:
            try:
                answer = once(retries.seconds_left(time.monotonic()))
            except _errors.Error as error:
                wait = retries.wait_after(error, time.monotonic(), random.random())
                if wait is None:
                    raise
            else:
                self._budget.answered()
                return answer
            time.sleep(wait)

    def _open(self, problem: Problem, timeout: float) -> "BlockStream":
        return BlockStream(
            self._begun("AttendStream", _stream.messages(problem), timeout), _stream.Replies(problem)
        )

    def _answer(self, problem: Problem, stream: bool | None, timeout: float | None) -> Answer:
        if not (problem.message_bytes > MESSAGE_BYTES if stream is None else stream):
            return self._call(_calls.attend(problem), timeout)

        def once(left: float) -> Answer:
            if problem.has_w_o is None:
                problem.pin(self._once(_calls.get_weight_set(*problem.weight_set()), left))
            with self._open(problem.copy(), left) as blocks:
                return blocks.answer()

        return self._asked(once, timeout)


class BlockStream(Iterator[Block]):
    """Blocks of an answer as they come, for one thread at a time; `close`, or a `with`'s end, gives the call up."""

    def __init__(self, call: Any, replies: _stream.Replies) -> None:
        self._call = call
        self._replies = replies

    def __next__(self) -> Block:
        block = self._replies.block(self._read())
        return self.__next__() if block is None else block  # the stream ends after the problem has

    def answer(self) -> Answer:
        """What is left of the stream, put together: all of it, where no block was taken."""
        try:
            while True:
                self._replies.keep(self._read())
        except StopIteration:
            return self._replies.answer()

    @property
    def statistics(self) -> Statistics | None:
        """What the problem took; None until the last block has come."""
        closing = self._replies.closing
        return None if closing is None else record(Statistics, closing.statistics)

    def close(self) -> None:
        self._call.cancel()

    def __enter__(self) -> "BlockStream":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _read(self) -> bytes:
        try:
            return bytes(next(self._call))
        except grpc.RpcError as error:
            raise _errors.of_rpc(error) from None
