"""PyTorch's call: its arguments by name, order and meaning, its ranks, and what it refuses."""

import inspect

import numpy as np
import pytest

import attnd
import oracle

draw = np.random.default_rng(3).standard_normal


def tensors(q_shape, kv_shape, width_v=None, dtype=np.float32):
    return (
        draw(q_shape).astype(dtype),
        draw(kv_shape).astype(dtype),
        draw((*kv_shape[:-1], width_v or kv_shape[-1])).astype(dtype),
    )


def full(array):
    """[N, d] and [B, N, d] as the formula takes them."""
    return array[None, None] if array.ndim == 2 else array[:, None] if array.ndim == 3 else array


def held_to_the_formula(got, q, k, v, **options):
    right = oracle.attention(full(q), full(k), full(v), **options)
    assert got.shape == (*q.shape[:-1], v.shape[-1]) and got.dtype == q.dtype
    oracle.assert_answer({"output": full(got)}, right, q.dtype.name)


@pytest.mark.parametrize("rank", [2, 3, 4])
@pytest.mark.parametrize("is_causal", [False, True])
def test_every_rank_comes_back_as_it_went(client, rank, is_causal):
    """Causal is from the top left, as PyTorch has it, where the service's own is from the bottom right."""
    lead = (2, 3)[: rank - 2]
    q, k, v = tensors((*lead, 5, 16), (*lead, 9, 16), 7)
    got = client.scaled_dot_product_attention(q, k, v, is_causal=is_causal)
    held_to_the_formula(got, q, k, v, causal=is_causal, q_offset=[0] * len(full(q)))


@pytest.mark.parametrize("mask_shape", [(9,), (5, 9), (1, 9), (2, 5, 9), (2, 1, 9)])
def test_masks_beside_rank_3_have_sequences_first(client, mask_shape):
    q, k, v = tensors((2, 5, 16), (2, 9, 16))
    mask, bias = draw(mask_shape) > -0.5, draw(mask_shape).astype(np.float32)
    as_formula = lambda array: array[:, None] if array.ndim == 3 else array
    held_to_the_formula(client.scaled_dot_product_attention(q, k, v, mask), q, k, v, mask=as_formula(mask))
    held_to_the_formula(client.scaled_dot_product_attention(q, k, v, bias), q, k, v, bias=as_formula(bias))


@pytest.mark.parametrize("mask_shape", [(5, 9), (3, 5, 9), (2, 1, 1, 9), (2, 3, 5, 9)])
def test_masks_beside_rank_4(client, mask_shape):
    q, k, v = tensors((2, 3, 5, 16), (2, 3, 9, 16))
    mask = draw(mask_shape) > -0.5
    bias = np.where(mask, draw(mask_shape), -np.inf).astype(np.float32)
    held_to_the_formula(client.scaled_dot_product_attention(q, k, v, attn_mask=mask), q, k, v, mask=mask)
    held_to_the_formula(client.scaled_dot_product_attention(q, k, v, attn_mask=bias), q, k, v, bias=bias)


@pytest.mark.parametrize("scale", [0.0, -0.5, 2.0])
def test_scale_is_taken_as_it_is(client, scale):
    q, k, v = tensors((1, 2, 5, 16), (1, 2, 9, 16))
    held_to_the_formula(client.scaled_dot_product_attention(q, k, v, scale=scale), q, k, v, scale=scale)


def test_grouped_heads_only_when_asked_for(client):
    q, k, v = tensors((1, 6, 5, 16), (1, 2, 9, 16))
    held_to_the_formula(client.scaled_dot_product_attention(q, k, v, enable_gqa=True), q, k, v)
    with pytest.raises(attnd.InvalidArgument, match="enable_gqa"):
        client.scaled_dot_product_attention(q, k, v)


def test_float16(client):
    q, k, v = tensors((1, 2, 5, 16), (1, 2, 9, 16), dtype=np.float16)
    held_to_the_formula(client.scaled_dot_product_attention(q, k, v), q, k, v)


def test_a_row_without_a_key_is_0(client):
    q, k, v = tensors((2, 16), (3, 16))
    got = client.scaled_dot_product_attention(q, k, v, np.array([[False] * 3, [True] * 3]))
    assert not got[0].any() and got[1].any()


@pytest.mark.parametrize(
    "arguments, words",
    [
        ({"dropout_p": 0.1}, "dropout_p: 0.1, expected 0"),
        ({"attn_mask": np.ones((5, 9), bool), "is_causal": True}, "attn_mask: given together with is_causal"),
        ({"attn_mask": attnd.Stored("mask")}, "attn_mask: .*expected an array"),
        ({"attn_mask": np.ones((5, 9), np.int32)}, "attn_mask: dtype int32, expected bool, or float"),
        ({"attn_mask": np.ones((5, 9))}, "attn_mask: dtype float64 outside reference mode"),
        ({"attn_mask": np.ones((4, 9), bool)}, r"attn_mask: shape \[4,9\], expected to broadcast"),
        ({"value": np.ones((1, 2, 8, 16), np.float32)}, r"value: shape \[1,2,8,16\], expected Nk = 9 as in key"),
        ({"key": np.ones((9, 16), np.float32)}, r"key: shape \[9,16\], expected rank 4 as in query"),
        ({"key": [[1.0], [1.0, 2.0]]}, "key: list is no array"),
        ({"query": np.ones((1, 1, 2, 5, 16), np.float32)}, r"query: shape \[1,1,2,5,16\], expected rank 2"),
        ({"query": np.ones((1, 2, 5, 16), np.int8)}, "query: dtype int8, expected float32 or float16"),
        ({"scale": float("nan")}, "scale: nan"),
        ({"scale": "1"}, "scale: '1': "),
    ],
)
def test_what_is_refused(client, arguments, words):
    q, k, v = tensors((1, 2, 5, 16), (1, 2, 9, 16))
    with pytest.raises(attnd.InvalidArgument, match=f"^{words}") as caught:
        client.scaled_dot_product_attention(**{"query": q, "key": k, "value": v} | arguments)
    assert isinstance(caught.value, ValueError) and caught.value.code.name == "INVALID_ARGUMENT"


def test_the_signature_is_pytorchs():
    """torch.nn.functional's, word for word; a timeout is the client's own."""
    theirs = "(query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False, *, scale=None, enable_gqa=False)"
    for function in (
        attnd.scaled_dot_product_attention,
        attnd.Client.scaled_dot_product_attention,
        attnd.aio.Client.scaled_dot_product_attention,
    ):
        parameters = inspect.signature(function).parameters.values()
        ours = inspect.Signature(
            [
                parameter.replace(annotation=inspect.Parameter.empty)
                for parameter in parameters
                if parameter.name not in ("self", "timeout")
            ]
        )
        assert str(ours) == theirs


def test_the_function_asks_the_server_of_the_environment(server, monkeypatch):
    monkeypatch.setenv("ATTND_SERVER", server.address)
    attnd._default_client.cache_clear()
    q, k, v = tensors((5, 16), (9, 16))
    held_to_the_formula(attnd.scaled_dot_product_attention(q, k, v), q, k, v)
