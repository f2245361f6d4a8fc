"""Projection weights by name and version, through the package."""

import asyncio

import numpy as np
import pytest

import attnd

draw = np.random.default_rng(17).standard_normal
X = draw((2, 5, 6), np.float32)


def projection(w_o=False):
    shapes = {"w_q": (6, 16), "w_k": (6, 8), "w_v": (6, 8)} | ({"w_o": (16, 3)} if w_o else {})
    return attnd.Projection(4, 2, **{name: draw(shape, np.float32) for name, shape in shapes.items()})


@pytest.fixture
def name(client):
    yield "a-set"
    client.delete_weight_set("a-set")


@pytest.mark.parametrize("w_o", [False, True])
@pytest.mark.parametrize("stream", [False, True])
def test_a_set_gives_the_bytes_of_its_weights(client, name, w_o, stream):
    weights = projection(w_o)
    put = client.put_weight_set(name, weights)
    assert (put.name, put.version, put.q_heads, put.kv_heads, put.from_file) == (name, 1, 4, 2, False)
    assert put.shapes["w_q"] == (6, 16) and put.dtypes["w_k"] == "float32" and ("w_o" in put.shapes) == w_o
    for x in (X, X[0]):
        named = client.attend(x=x, weight_set=name, outputs="projected_k", stream=stream)
        whole = client.attend(x=x, projection=weights, outputs="projected_k", stream=stream)
        assert named.output.shape == whole.output.shape == (*x.shape[:-2], *((5, 3) if w_o else (4, 5, 4)))
        assert named.output.tobytes() == whole.output.tobytes()
        assert named.projected["k"].tobytes() == whole.projected["k"].tobytes()


def test_one_head_keeps_its_dimension_on_a_stream(client, name):
    """[B, 1, N, d] of one head and [B, N, d_out] have the same blocks; the set says which it is."""
    weights = {letter: draw((6, 8), np.float32) for letter in ("w_q", "w_k", "w_v")}
    client.put_weight_set(name, attnd.Projection(1, 1, **weights))
    client.put_weight_set(name, attnd.Projection(1, 1, **weights, w_o=draw((8, 8), np.float32)))
    shapes = [client.attend(x=X, weight_set=(name, version), stream=True).output.shape for version in (1, 2, 0)]
    assert shapes == [(2, 1, 5, 8), (2, 5, 8), (2, 5, 8)]


def test_versions(client, name):
    first, second = projection(), projection()
    client.put_weight_set(name, first)
    client.put_weight_set(name, second, version=7, rotary=attnd.Rotary(2, rope_base=50.0))
    with pytest.raises(attnd.AlreadyExists):
        client.put_weight_set(name, first, version=7)
    assert [found.version for found in client.list_weight_sets() if found.name == name] == [1, 7]
    assert client.get_weight_set(name).version == 7 and client.get_weight_set(name, 1).version == 1
    old = client.attend(x=X, weight_set=(name, 1)).output
    assert old.tobytes() == client.attend(x=X, projection=first).output.tobytes()
    new = client.attend(x=X, weight_set=name).output
    turned = client.attend(x=X, projection=second, rotary=attnd.Rotary(2, rope_base=50.0)).output
    assert new.tobytes() == turned.tobytes() != client.attend(x=X, projection=second).output.tobytes()
    client.delete_weight_set(name, 7)
    assert client.attend(x=X, weight_set=name).output.tobytes() == old.tobytes()
    for call in (
        lambda: client.get_weight_set(name, 7),
        lambda: client.attend(x=X, weight_set=(name, 7)),
        lambda: client.attend(x=X, weight_set=(name, 7), stream=True),
        lambda: client.delete_weight_set("nobody"),
    ):
        with pytest.raises(attnd.NotFound):
            call()


def test_coroutines(server, name):
    async def body():
        async with attnd.aio.connect(server.address) as client:
            put = await client.put_weight_set(name, projection())
            assert await client.get_weight_set(name) == put and put in await client.list_weight_sets()
            one, other = [await client.attend(x=X, weight_set=name, stream=stream) for stream in (False, True)]
            await client.put_weight_set("another", projection(), version=2)
            await client.delete_weight_set("another", 2)
            return one, other

    one, other = asyncio.run(body())
    assert one.output.shape == (2, 4, 5, 4) and one.output.tobytes() == other.output.tobytes()
