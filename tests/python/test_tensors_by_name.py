"""Tensors by name: put, appended to, used in place of any tensor, listed and taken away."""

import asyncio

import numpy as np
import pytest

import attnd
from attnd_server import AttndServer

draw = np.random.default_rng(15).standard_normal
Q, K, V = (draw(shape, np.float32) for shape in ((2, 4, 3, 16), (2, 2, 50, 16), (2, 2, 50, 8)))


@pytest.fixture
def put(client):
    """Puts tensors by keyword, and takes them away at the end."""
    names = []

    def put_all(**tensors):
        names.extend(tensors)
        return [client.put_tensor(name, tensor) for name, tensor in tensors.items()]

    yield put_all
    for name in names:
        client.delete_tensor(name)


def stored(*names):
    return [attnd.Stored(name) for name in names]


def test_what_is_put_is_what_is_there(client, put):
    wide = np.arange(3 << 20, dtype=np.float16).reshape(3, -1)  # several messages
    kept, mask, positions, empty = put(wide=wide, mask=np.tri(3) > 0, positions=[[1, 2]], empty=np.zeros((0, 3), "f4"))
    assert (kept.name, kept.dtype, kept.shape, kept.append_axis) == ("wide", "float16", (3, 1 << 20), None)
    assert kept.bytes >= wide.nbytes and kept.ttl_ms > 0 and kept.calls == 0
    assert (mask.dtype, positions.dtype, empty.shape) == ("bool", "int64", (0, 3))
    assert client.get_tensor("wide") == kept and {tensor.name for tensor in client.list_tensors()} == {
        "wide",
        "mask",
        "positions",
        "empty",
    }


@pytest.mark.parametrize("stream", [False, True])
def test_a_name_stands_for_any_tensor(client, put, stream):
    mask, bias = draw((3, 50)) > -1, draw((4, 3, 50), np.float32)
    rotary = {"q_positions": np.arange(6).reshape(2, 3), "k_positions": np.arange(100).reshape(2, 50)}
    keywords = {"outputs": ["weights", "lse"], "stream": stream}
    here = client.attend(Q, K, V, mask=mask, bias=bias, rotary=attnd.Rotary(8, **rotary), **keywords)
    put(q=Q, k=K, v=V, mask=mask, bias=bias, **rotary)
    there = client.attend(
        *stored("q", "k", "v"),
        mask=attnd.Stored("mask"),
        bias=attnd.Stored("bias"),
        rotary=attnd.Rotary(8, q_positions=attnd.Stored("q_positions"), k_positions=attnd.Stored("k_positions")),
        **keywords,
    )
    some = client.attend(Q, *stored("k", "v"), mask=mask, bias=bias, rotary=attnd.Rotary(8, **rotary), **keywords)
    for answer in (there, some):
        for name in ("output", "weights", "lse"):
            assert getattr(answer, name).tobytes() == getattr(here, name).tobytes()


def test_pytorchs_call_and_other_ranks(client, put):
    put(k=K[:1, :1], v=V[:1, :1])
    right = client.scaled_dot_product_attention(Q[0, 0], K[0, 0], V[0, 0], is_causal=True)
    got = client.scaled_dot_product_attention(Q[0, 0], *stored("k", "v"), is_causal=True)
    assert got.shape == (3, 8) and got.tobytes() == right.tobytes()
    put(q=Q[:1, :1])
    whole = client.attend(attnd.Stored("q"), *stored("k", "v"), causal=True, q_offset=[0])
    assert whole.output.shape == (1, 1, 3, 8) and whole.output.tobytes() == right.tobytes()
    with pytest.raises(attnd.InvalidArgument, match="q_offset: one number, expected one for each sequence"):
        client.attend(attnd.Stored("q"), *stored("k", "v"), causal=True, q_offset=0)


def test_decoding_on_a_cache_that_grows(client):
    for name, tensor in (("cache.k", K), ("cache.v", V)):
        kept = client.put_tensor(name, tensor[:, :, :45], append_axis=2, capacity=50, ttl=60)
        assert (kept.append_axis, kept.capacity, kept.ttl_ms) == (2, 50, 60000)
    for length in range(45, 50):
        rows = {"cache.k": K[:, :, length : length + 1], "cache.v": V[:, :, length : length + 1]}
        grown = client.append(rows, length_before=length)
        assert [tensor.shape[2] for tensor in grown] == [length + 1] * 2
        with pytest.raises(attnd.FailedPrecondition, match=f"{length}"):  # as a retry would
            client.append(rows, length_before=length)
        step = client.attend(Q[:, :, :1], *stored("cache.k", "cache.v"), causal=True)
        right = client.attend(Q[:, :, :1], K[:, :, : length + 1], V[:, :, : length + 1], causal=True)
        assert step.output.tobytes() == right.output.tobytes()
    with pytest.raises(attnd.Error):  # full
        client.append({"cache.k": K[:, :, :1], "cache.v": V[:, :, :1]})
    assert [tensor.shape[2] for tensor in client.list_tensors()] == [50, 50]
    for name in ("cache.k", "cache.v"):
        client.delete_tensor(name)
    assert client.list_tensors() == []


def test_what_is_not_there_or_does_not_fit(client):
    for call in (
        lambda: client.get_tensor("nobody"),
        lambda: client.delete_tensor("nobody"),
        lambda: client.append({"nobody": K}),
        lambda: client.attend(Q, *stored("nobody", "nobody")),
        lambda: client.attend(Q, *stored("nobody", "nobody"), stream=True),
    ):
        with pytest.raises(attnd.NotFound, match='"nobody"'):
            call()
    with pytest.raises(attnd.InvalidArgument):
        client.put_tensor("../elsewhere", K)
    with pytest.raises(attnd.InvalidArgument, match="ttl"):
        client.put_tensor("k", K, ttl=0)
    with AttndServer(f"--store_bytes_max={1 << 20}") as server, attnd.connect(server.address) as other:
        with pytest.raises(attnd.ResourceExhausted, match="store_bytes_max"):
            other.put_tensor("large", np.zeros((1 << 20,), np.float32))
        assert other.list_tensors() == [] and other.put_tensor("small", K).shape == K.shape


def test_coroutines(server):
    async def body():
        async with attnd.aio.connect(server.address) as client:
            await client.put_tensor("k", K, append_axis=2, capacity=51)
            await client.put_tensor("v", V, append_axis=2, capacity=51)
            await client.append({"k": K[:, :, :1], "v": V[:, :, :1]}, length_before=50)
            names = [tensor.name for tensor in await client.list_tensors()]
            length = (await client.get_tensor("k")).shape[2]
            output = await client.scaled_dot_product_attention(Q, *stored("k", "v"), enable_gqa=True)
            for name in names:
                await client.delete_tensor(name)
            return names, length, output, await client.list_tensors()

    names, length, output, left = asyncio.run(body())
    assert names == ["k", "v"] and length == 51 and output.shape == (2, 4, 3, 8) and left == []
