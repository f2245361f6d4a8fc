"""The same client as coroutines: many calls at once, blocks, deadlines, and tasks that are cancelled."""

import asyncio
import inspect

import numpy as np
import pytest

import attnd
from attnd_server import AttndServer, eventually

Q = np.random.default_rng(9).standard_normal((2, 3, 50, 8)).astype(np.float32)
LARGE = np.zeros((8, 30000, 64), np.float32)


def run(server, body):
    async def with_client():
        async with attnd.aio.connect(server.address) as client:
            return await body(client)

    return asyncio.run(with_client())


def test_it_has_what_the_other_has():
    def signatures(kind):
        return {
            name: str(inspect.signature(method).replace(return_annotation=inspect.Signature.empty))
            for name, method in inspect.getmembers(kind, inspect.isfunction)
            if not name.startswith("_")
        }

    assert signatures(attnd.aio.Client) == signatures(attnd.Client)
    assert signatures(attnd.aio.BlockStream) == signatures(attnd.BlockStream)


def test_many_at_once(server, client):
    async def body(client):
        return await asyncio.gather(*(client.scaled_dot_product_attention(Q[:, :, :n], Q, Q) for n in range(1, 51)))

    for n, output in enumerate(run(server, body), 1):
        assert output.tobytes() == client.scaled_dot_product_attention(Q[:, :, :n], Q, Q).tobytes()


def test_streams(server, client):
    async def body(client):
        blocks = []
        async with client.attend_stream(Q, Q, Q, outputs="lse") as stream:
            async for block in stream:
                blocks.append(block)
        return blocks, stream.statistics, await client.attend(Q, Q, Q, outputs="lse", stream=True)

    blocks, statistics, answer = run(server, body)
    whole = client.attend(Q, Q, Q, outputs="lse")
    assert answer.output.tobytes() == whole.output.tobytes() and answer.lse.tobytes() == whole.lse.tobytes()
    assert sum(block.array.nbytes for block in blocks) == whole.output.nbytes + whole.lse.nbytes
    assert statistics.q_offset == (0, 0)


def test_plan_and_info(server):
    async def body(client):
        return await client.plan(Q, Q, Q, layers=3), await client.info()

    plan, info = run(server, body)
    assert plan.multiply_adds == 3 * 2 * 3 * 50 * 50 * 16 and plan.admitted and info.threads >= 1


@pytest.mark.parametrize("stream", [False, True])
def test_a_deadline_and_a_refusal(server, stream):
    async def body(client):
        with pytest.raises(attnd.DeadlineExceeded):
            await client.attend(LARGE, LARGE, LARGE, timeout=0.05, stream=stream)
        with pytest.raises(attnd.InvalidArgument, match=r"k: shape \[2,3,50,5\], expected d_k = 8 as in q"):
            await client.attend(Q, Q[..., :5], Q, stream=stream)
        return await client.attend(Q, Q, Q, stream=stream)

    assert run(server, body).output.shape == Q.shape


@pytest.mark.parametrize("stream", [False, True])
def test_a_task_that_is_cancelled_stops_the_work(stream):
    with AttndServer() as server:

        async def body(client):
            task = asyncio.create_task(client.attend(LARGE, LARGE, LARGE, stream=stream))
            while (await client.info()).memory_bytes_used == 0:
                await asyncio.sleep(0.01)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            return await client.attend(Q, Q, Q)

        assert run(server, body).output.shape == Q.shape
        with attnd.connect(server.address) as client:
            eventually("nothing is held", lambda: client.info().memory_bytes_used == 0)


def test_a_closed_client_says_so(server):
    async def body(client):
        await client.close()
        with pytest.raises(attnd.FailedPrecondition, match="the client is closed"):
            await client.info()
        with pytest.raises(attnd.FailedPrecondition, match="the client is closed"):
            await client.attend_stream(Q, Q, Q).answer()
        return repr(client)

    assert run(server, body) == f"<attnd.aio.Client of {server.address}, closed>"
