"""Which arrays are taken, and what comes back."""

import sys

import numpy as np
import pytest

import attnd

Q = np.random.default_rng(4).standard_normal((2, 3, 6, 8)).astype(np.float32)


def wrapped(array, *protocol):
    """Somebody's array, of which only these methods are known."""

    def method(name):
        return lambda _, *arguments, **keywords: getattr(array, name)(*arguments, **keywords)

    return type("Wrapped", (), {name: method(name) for name in protocol})()


def gives_bools():
    """Whether this NumPy has DLPack's bool: from 1.25 on."""
    try:
        return np.ones(1, bool).__dlpack__() is not None
    except BufferError:
        return False


@pytest.fixture(scope="module")
def right(client):
    return client.scaled_dot_product_attention(Q, Q, Q)


@pytest.mark.parametrize(
    "form",
    [
        lambda array: wrapped(array, "__array__"),
        lambda array: wrapped(array, "__dlpack__", "__dlpack_device__"),
        lambda array: array.tolist(),
        lambda array: array.astype(">f4"),
        lambda array: np.asfortranarray(array),
        lambda array: np.repeat(array, 2, axis=2)[:, :, ::2],
        lambda array: np.broadcast_to(array, array.shape),
    ],
    ids=["__array__", "DLPack", "lists", "big-endian", "columns first", "strided", "read-only"],
)
def test_the_same_numbers_give_the_same_bytes(client, right, form):
    got = client.scaled_dot_product_attention(*(form(Q) for _ in range(3)))
    assert type(got) is np.ndarray and got.dtype == np.float32 and got.tobytes() == right.tobytes()
    got += 1  # the caller's own


@pytest.mark.parametrize("protocol", [("__array__",), ("__dlpack__", "__dlpack_device__")], ids=["__array__", "DLPack"])
def test_what_is_beside_q_k_and_v_may_be_anyones_array_too(client, protocol):
    theirs = lambda array: wrapped(array, *protocol)
    mask = np.tri(6, dtype=bool)
    bias = np.where(mask, np.float32(0), np.float32(-np.inf))
    for given in (mask, bias) if protocol == ("__array__",) or gives_bools() else (bias,):
        right = client.scaled_dot_product_attention(Q, Q, Q, given)
        assert client.scaled_dot_product_attention(Q, Q, Q, theirs(given)).tobytes() == right.tobytes()
    options = {"kv_len": np.array([3, 6]), "q_offset": np.array([0, 0]), "sinks": np.zeros(3, np.float32)}
    right = client.attend(Q, Q, Q, **options)
    got = client.attend(Q, Q, Q, **{name: theirs(array) for name, array in options.items()})
    assert got.output.tobytes() == right.output.tobytes()
    with pytest.raises(attnd.InvalidArgument, match="without enable_gqa"):
        client.scaled_dot_product_attention(theirs(Q), theirs(Q[:, :1]), theirs(Q[:, :1]))


def test_numbers_of_another_kind_are_refused(client):
    for wrong, words in (
        (object(), "q: dtype object"),
        ([[1.0], [1.0, 2.0]], "q: list is no array"),
        ("word", "q: dtype <U4"),
    ):
        with pytest.raises(attnd.InvalidArgument, match=words):
            client.attend(wrong, Q, Q)


def test_float64_is_for_reference_mode(client):
    wide = Q.astype(np.float64)
    with pytest.raises(attnd.InvalidArgument, match="float64"):
        client.attend(wide, wide, wide)
    answer = client.attend(wide, wide, wide, mode="reference", outputs=["lse"])
    assert answer.output.dtype == answer.lse.dtype == np.float64


def test_bfloat16_that_numpy_could_not_hold_is_not_asked_for(client, monkeypatch):
    monkeypatch.setitem(sys.modules, "ml_dtypes", None)
    with pytest.raises(ImportError, match=r"pip install attnd\[bfloat16\]"):
        client.attend(Q, Q, Q, output_dtype="bfloat16")


def test_sizes_of_0(client):
    nothing = np.zeros((2, 3, 0, 8), np.float32)
    assert client.scaled_dot_product_attention(nothing, Q, Q).shape == (2, 3, 0, 8)
    for stream in (False, True):
        answer = client.attend(Q, nothing, nothing, outputs=["weights", "lse"], stream=stream)
        assert answer.weights.shape == (2, 3, 6, 0) and not answer.output.any() and np.all(answer.lse == -np.inf)


@pytest.mark.parametrize("rank, layout", [(2, "bhnd"), (3, "bhnd"), (3, "bnhd"), (4, "bnhd")])
@pytest.mark.parametrize("stream", [False, True])
def test_every_output_has_the_rank_of_q(client, rank, layout, stream):
    q = {2: Q[0, 0], 3: Q[:, 0], 4: Q.swapaxes(1, 2)}[rank]
    heads = Q.shape[1] if rank == 4 else 1
    batch = Q.shape[0] if rank > 2 else 1
    names = ["weights", "lse", "scores_dot", "scores_biased"]
    answer = client.attend(q, q, q, layout=layout, outputs=names, stream=stream)
    whole = client.attend(Q[:batch, :heads], Q[:batch, :heads], Q[:batch, :heads], outputs=names)
    assert answer.output.shape == q.shape and answer.weights.shape[: rank - 2] == (2, 3)[: rank - 2]
    output = whole.output.swapaxes(1, 2) if layout == "bnhd" else whole.output
    assert answer.output.tobytes() == output.tobytes()
    assert answer.lse.shape == answer.weights.shape[:-1] and answer.lse.tobytes() == whole.lse.tobytes()
    assert answer.weights.tobytes() == whole.weights.tobytes()
    assert {step: scores.tobytes() for step, scores in answer.scores.items()} == {
        step: scores.tobytes() for step, scores in whole.scores.items()
    }


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("w_o", [False, True])
def test_x_of_both_ranks(client, stream, w_o):
    draw = np.random.default_rng(5).standard_normal
    x = draw((2, 5, 6)).astype(np.float32)
    weights = {name: draw((6, 8)).astype(np.float32) for name in ("w_q", "w_k", "w_v")}
    weights |= {"w_o": draw((8, 3)).astype(np.float32)} if w_o else {}
    projection = attnd.Projection(q_heads=2, kv_heads=2, **weights)
    whole = client.attend(x=x, projection=projection, outputs="projected_q", stream=stream)
    assert whole.output.shape == ((2, 5, 3) if w_o else (2, 2, 5, 4)) and whole.projected["q"].shape == (2, 2, 5, 4)
    np.testing.assert_allclose(
        whole.projected["q"], (x @ weights["w_q"]).reshape(2, 5, 2, 4).swapaxes(1, 2), rtol=1e-4, atol=1e-5
    )
    mask = draw((2, 5, 5)) > -1  # of heads, queries and keys: x has no heads to leave out
    masked = client.attend(x=x, projection=projection, mask=mask, outputs="weights", stream=stream)
    assert (masked.weights == 0).tobytes() == np.broadcast_to(~mask, (2, 2, 5, 5)).tobytes()
    one = client.attend(x=x[0], projection=projection, stream=stream)
    assert one.output.tobytes() == whole.output[0].tobytes() and one.output.shape == whole.output.shape[1:]
