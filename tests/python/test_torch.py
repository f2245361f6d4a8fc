"""Beside PyTorch's own function, where torch is: the same arguments, the same answers, tensors in and out."""

import itertools

import numpy as np
import pytest
import torch

import attnd

CASES = list(itertools.product(("float32", "float16", "bfloat16"), (2, 3, 4), ("none", "causal", "bool", "float")))


@pytest.mark.parametrize("dtype, rank, mask", CASES)
def test_the_same_as_torch(client, dtype, rank, mask):
    torch.manual_seed(0)
    lead = (2, 4)[: rank - 2]
    q, k, v = (torch.randn(*lead, rows, 16).to(getattr(torch, dtype)) for rows in (7, 9, 9))
    keywords = {
        "none": {},
        "causal": {"is_causal": True},
        "bool": {"attn_mask": torch.rand(*lead, 7, 9) > 0.3},
        "float": {"attn_mask": torch.randn(7, 9).to(q.dtype)},
    }[mask]
    got = client.scaled_dot_product_attention(q, k, v, **keywords)
    theirs = torch.nn.functional.scaled_dot_product_attention(
        *(tensor.double() for tensor in (q, k, v)),
        **{name: value.double() if mask == "float" else value for name, value in keywords.items()},
    )
    assert got.dtype == q.dtype and got.shape == q.shape and got.device == q.device
    rounding = {"float32": 1e-6, "float16": 2.0**-11, "bfloat16": 2.0**-8}[dtype]
    assert torch.all((got.double() - theirs).abs() <= rounding * (1 + theirs.abs()))


def test_grouped_heads_and_scale(client):
    q, k, v = (torch.randn(1, heads, 7, 16) for heads in (6, 2, 2))
    keywords = {"scale": 0.3, "enable_gqa": True}
    got = client.scaled_dot_product_attention(q, k, v, **keywords)
    theirs = torch.nn.functional.scaled_dot_product_attention(q.double(), k.double(), v.double(), **keywords)
    assert (got - theirs).abs().max() < 1e-5


def test_views_gradients_and_transposes_are_taken(client):
    q = torch.randn(5, 16, requires_grad=True)
    k = torch.randn(16, 9).t()
    got = client.scaled_dot_product_attention(q, k, k)
    plain = client.scaled_dot_product_attention(q.detach().numpy(), k.contiguous().numpy(), k.contiguous().numpy())
    assert not got.requires_grad and np.array_equal(got.numpy(), plain)
    got += 1  # the caller's own


def test_every_tensor_of_an_answer_is_torchs(client):
    q = torch.randn(2, 5, 16).to(torch.bfloat16)
    answer = client.attend(q, q, q, outputs=["weights", "lse", "scores_dot"])
    streamed = client.attend(q, q, q, outputs=["weights", "lse", "scores_dot"], stream=True)
    for name in ("output", "weights", "lse"):
        assert torch.equal(getattr(answer, name), getattr(streamed, name))
    assert answer.output.dtype == torch.bfloat16 and answer.weights.dtype == torch.float32
    with client.attend_stream(q, q, q) as blocks:
        assert {block.array.dtype for block in blocks} == {torch.bfloat16}


def test_a_type_that_does_not_travel(client):
    q = torch.zeros(5, 16, dtype=torch.float8_e4m3fn)
    with pytest.raises(attnd.InvalidArgument, match="q: Tensor is no array"):
        client.attend(q, q, q)
