"""A thousand streams at once, each with one small problem after another: every answer right, and memory flat.

ATTND_STREAM_ANSWERS=1000 makes it as much longer by hand.
"""

import asyncio
import os

import grpc

import wire
from aftermath import leaves_nothing, random_request
from attnd.v1 import attention_pb2 as pb
from attnd.v1 import attention_pb2_grpc
from attnd_server import AttndServer, CALL_SECONDS_MAX

STREAMS, CONNECTIONS = 1000, 20
ANSWERS = int(os.environ.get("ATTND_STREAM_ANSWERS", 12))  # of each stream
SETTLED = 2  # answers after which a stream has all that it will ever need
GROWTH_BYTES_MAX = 8 << 20  # less than one byte in six of what came and left


async def ask(stub, request, right, settled, answered):
    """One problem after another on one stream, each checked to the byte; waits for all the others in two places."""
    stream = stub.AttendStream(timeout=ANSWERS + CALL_SECONDS_MAX)
    for number in range(ANSWERS):
        if number == SETTLED:
            await settled.wait()
        await stream.write(pb.AttendStreamRequest(problem_id=number, header=request))
        block, closing = await stream.read(), await stream.read()
        assert block.problem_id == closing.problem_id == number
        assert not closing.closing.HasField("error"), closing
        assert block.block.data == right
    await answered.wait()
    await stream.done_writing()
    assert await stream.read() is grpc.aio.EOF
    assert await stream.code() == grpc.StatusCode.OK


async def ask_all(server, request, right):
    """Resident bytes when all streams are settled, and when all were answered and are still open."""
    channels = [
        grpc.aio.insecure_channel(server.address, options=[("grpc.use_local_subchannel_pool", 1)])
        for _ in range(CONNECTIONS)
    ]
    stubs = [attention_pb2_grpc.AttentionServiceStub(channel) for channel in channels]
    places = [asyncio.Barrier(STREAMS + 1) for _ in range(2)]

    async def look(place):
        await place.wait()
        return server.resident_bytes()

    looks = [look(place) for place in places]
    asks = [ask(stubs[number % CONNECTIONS], request, right, *places) for number in range(STREAMS)]
    settled, end, *_ = await asyncio.gather(*looks, *asks)
    for channel in channels:
        await channel.close()
    return settled, end


def test_thousand_streams():
    with AttndServer() as server, leaves_nothing(server):
        request = random_request(1, 5, 64)
        right = wire.attend(server.stub(), request).raw["output"]
        settled, end = asyncio.run(ask_all(server, request, right))
        print(f"resident {settled >> 10} KiB, at the end {end >> 10} KiB")
        assert end - settled < GROWTH_BYTES_MAX or not server.memory_is_its_own()
