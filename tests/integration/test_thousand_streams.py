"""A thousand streams at once, each with one small problem after another: every answer right, and memory flat.

15 seconds in the suite; ATTND_STREAMS_SECONDS=60 makes it that long by hand.
"""

import asyncio
import os
import time

import grpc

import wire
from aftermath import leaves_nothing, random_request
from attnd.v1 import attention_pb2 as pb
from attnd.v1 import attention_pb2_grpc
from attnd_server import AttndServer, CALL_SECONDS_MAX

STREAMS, CONNECTIONS = 1000, 20
SECONDS = float(os.environ.get("ATTND_STREAMS_SECONDS", 15))
SETTLED_SECONDS = 3  # by then every stream has had its first answers
GROWTH_BYTES_MAX = 8 << 20


async def ask_until(end, stub, request, right):
    """Problems answered on one stream, each checked to the byte."""
    stream, answered = stub.AttendStream(timeout=SECONDS + CALL_SECONDS_MAX), 0
    while time.monotonic() < end or answered == 0:
        await stream.write(pb.AttendStreamRequest(problem_id=answered, header=request))
        block, closing = await stream.read(), await stream.read()
        assert block.problem_id == closing.problem_id == answered
        assert not closing.closing.HasField("error"), closing
        assert block.block.data == right
        answered += 1
    await stream.done_writing()
    assert await stream.read() is grpc.aio.EOF
    assert await stream.code() == grpc.StatusCode.OK
    return answered


async def ask_all(server, request, right):
    """Problems answered on all streams, and resident bytes when settled and at the end, all streams still open."""
    channels = [
        grpc.aio.insecure_channel(server.address, options=[("grpc.use_local_subchannel_pool", 1)])
        for _ in range(CONNECTIONS)
    ]
    stubs = [attention_pb2_grpc.AttentionServiceStub(channel) for channel in channels]
    start = time.monotonic()
    streams = [
        asyncio.create_task(ask_until(start + SECONDS, stubs[number % CONNECTIONS], request, right))
        for number in range(STREAMS)
    ]
    await asyncio.sleep(SETTLED_SECONDS)
    settled = server.resident_bytes()
    await asyncio.sleep(SECONDS - SETTLED_SECONDS)
    end = server.resident_bytes()
    answered = await asyncio.gather(*streams)
    for channel in channels:
        await channel.close()
    return sum(answered), settled, end


def test_thousand_streams():
    with AttndServer() as server, leaves_nothing(server):
        request = random_request(1, 5, 64)
        right = wire.attend(server.stub(), request).raw["output"]
        answered, settled, end = asyncio.run(ask_all(server, request, right))
        print(f"{answered} answers, resident {settled >> 20} MiB, at the end {end >> 20} MiB")
        assert answered >= STREAMS
        assert end - settled < GROWTH_BYTES_MAX
