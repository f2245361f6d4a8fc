"""Everything a server meets, at once: good callers large and small, and peers that stop in the middle, in threads.

A refusal for lack of room is fine everywhere; any other failure only where the fault itself makes it.
"""

import collections
import itertools
import queue
import random
import threading
import time

import grpc
import numpy as np

import wire
from aftermath import random_request
from attnd.v1 import attention_pb2 as pb
from attnd.v1 import attention_pb2_grpc
from attnd_server import CALL_SECONDS_MAX, eventually
from tcp_proxy import TcpProxy

STALL_MS = 3000  # of the server's flags for peers that stop
BUSY = grpc.StatusCode.RESOURCE_EXHAUSTED


def with_few_queries(rows, width):
    """Large tensors, 2 * rows * width floats, and little to compute."""
    draw = np.random.default_rng(rows).standard_normal
    keys, values = (draw((1, 1, rows, width), np.float32) for _ in range(2))
    return wire.request(draw((1, 1, 16, width), np.float32), keys, values)


class Load:
    """Problems of many sizes, what is right for the small one, and the count of what happened."""

    def __init__(self, server):
        self.server = server
        sizes = ((9000, 64), (5000, 256), (12000, 256), (30000, 64))
        self.large = [with_few_queries(rows, width) for rows, width in sizes]
        self.weights = [random_request(1, rows, 16, outputs=("weights",)) for rows in (700, 1100, 1900)]
        self.unread = random_request(1, 4096, 8, outputs=("weights",))  # 64 MiB
        self.small = random_request(2, 40, 16)
        self.right = wire.attend(server.stub(), self.small).raw
        self.answered, self.refused, self.faults = (collections.Counter() for _ in range(3))
        self.failures = []

    def run(self, seconds, seconds_max=None):
        """Each kind again and again for so long, in two threads each; and on until each has happened, or seconds_max.

        What happens in a time depends on the machine: there may be no room for a kind for long.
        """
        end = time.monotonic() + seconds
        last = max(end, time.monotonic() + (seconds_max or 0))
        threads = [
            threading.Thread(target=self._repeat, args=(kind, random.Random(number), end, last))
            for number, kind in enumerate(KINDS * 2)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def each_happened(self):
        return all(self.answered[kind.__name__] + self.faults[kind.__name__] for kind in KINDS)

    def _repeat(self, kind, chance, end, last):
        def goes_on():
            now = time.monotonic()
            return now < end or (now < last and not self.each_happened())

        try:
            while goes_on() and not self.failures:
                with self.server.channel() as channel:
                    caller = Caller(self, kind.__name__, chance, attention_pb2_grpc.AttentionServiceStub(channel))
                    caller.ask(lambda: kind(caller))
        except BaseException as error:  # told by the test
            self.failures.append((kind.__name__, error))
            raise


class Caller:
    """One turn of one kind, on a connection of its own."""

    def __init__(self, load, kind, chance, stub):
        self.load, self.kind, self.chance, self.stub = load, kind, chance, stub

    def ask(self, call):
        """What it gives, or None when the server has no room for it now."""
        try:
            return call()
        except (grpc.RpcError, wire.ProblemFailed) as error:
            code = error.code if isinstance(error, wire.ProblemFailed) else error.code()
            if code != BUSY:
                raise
            self.load.refused[self.kind] += 1
            return None

    def was_answered(self):
        self.load.answered[self.kind] += 1

    def made_a_fault(self):
        self.load.faults[self.kind] += 1


def large_calls(caller):
    wire.attend(caller.stub, caller.chance.choice(caller.load.large))
    caller.was_answered()


def large_streams(caller):
    request, piece_bytes = caller.chance.choice(caller.load.large), caller.chance.choice([1 << 15, 1 << 18, 1 << 20])
    wire.attend_stream(caller.stub, request, piece_bytes=piece_bytes)
    caller.was_answered()


def calls_for_weights(caller):
    wire.attend(caller.stub, caller.chance.choice(caller.load.weights))
    caller.was_answered()


def streams_for_weights(caller):
    wire.attend_stream(caller.stub, caller.chance.choice(caller.load.weights))
    caller.was_answered()


def small_calls(caller):
    for _ in range(100):
        assert wire.attend(caller.stub, caller.load.small).raw == caller.load.right
        caller.was_answered()


def calls_too_large(caller):
    """By their header alone; there is never room."""
    header = pb.AttendRequest()
    for name in "qkv":
        getattr(header, name).CopyFrom(pb.Tensor(dtype=pb.DATA_TYPE_FLOAT32, shape=[1, 1, 1 << 20, 64]))
    sent = [pb.AttendStreamRequest(problem_id=number, header=header) for number in range(10)]
    for reply in caller.stub.AttendStream(iter(sent), timeout=CALL_SECONDS_MAX):
        assert reply.closing.error.code == BUSY.value[0]
    caller.made_a_fault()


def readers_that_stop(caller):
    replies = caller.stub.AttendStream(wire.stream_messages(1, caller.load.unread), timeout=CALL_SECONDS_MAX)
    if next(replies).HasField("block"):  # else it was refused
        caller.made_a_fault()
        time.sleep(1.5 * STALL_MS / 1000)
    replies.cancel()


def senders_that_stop(caller):
    """Between two pieces, until the server gives up on the problem."""
    sent = queue.SimpleQueue()
    pieces = wire.stream_messages(1, caller.chance.choice(caller.load.large), piece_bytes=1 << 20)
    for message in itertools.islice(pieces, 4):
        sent.put(message)
    replies = caller.stub.AttendStream(iter(sent.get, None), timeout=CALL_SECONDS_MAX)
    try:
        error = next(replies).closing.error
    finally:
        sent.put(None)
        replies.cancel()
    assert error.code in (BUSY.value[0], grpc.StatusCode.DEADLINE_EXCEEDED.value[0]), error
    caller.made_a_fault()


def _falls_silent(caller, start):
    """In the middle of what `start` sends, and is gone later."""
    request = caller.load.large[-1]
    proxy = TcpProxy(caller.load.server.port)
    with caller.load.server.channel(proxy.address) as channel, proxy:  # a channel cannot close over a silent connection
        call = start(attention_pb2_grpc.AttentionServiceStub(channel), request)
        bytes_sent = caller.chance.randrange(1 << 20, request.ByteSize() - (4 << 20))
        eventually("bytes came, or it was refused", lambda: proxy.bytes_to_server > bytes_sent or not call.is_active())
        proxy.silence()
        caller.made_a_fault()
        time.sleep(1)
        proxy.reset()
        call.cancel()


def silence_mid_message(caller):
    _falls_silent(caller, lambda stub, request: stub.Attend.future(request, timeout=CALL_SECONDS_MAX))


def silence_mid_piece(caller):
    def start(stub, request):
        return stub.AttendStream(wire.stream_messages(1, request, piece_bytes=4 << 20), timeout=CALL_SECONDS_MAX)

    _falls_silent(caller, start)


KINDS = [
    large_calls,
    large_streams,
    calls_for_weights,
    streams_for_weights,
    small_calls,
    calls_too_large,
    readers_that_stop,
    senders_that_stop,
    silence_mid_message,
    silence_mid_piece,
]
