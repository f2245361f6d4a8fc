"""bfloat16 by ml_dtypes, in and out; with it, pages of every type by the conformance tests' own lines."""

import ml_dtypes
import numpy as np
import pytest

import oracle
from through_package import conformance_tests

globals().update(conformance_tests("test_pages"))
Q, K, V = (np.random.default_rng(11).standard_normal((2, 3, rows, 16)).astype(ml_dtypes.bfloat16) for rows in (5, 9, 9))
RIGHT = oracle.attention(Q, K, V)


@pytest.mark.parametrize("stream", [False, True])
def test_in_and_out(client, stream):
    answer = client.attend(Q, K, V, outputs=["weights"], stream=stream)
    assert answer.output.dtype == ml_dtypes.bfloat16 and answer.weights.dtype == np.float32
    oracle.assert_answer({"output": answer.output, "weights": answer.weights}, RIGHT, "bfloat16")


def test_only_in_and_only_out(client):
    widened = client.attend(Q, K, V, output_dtype="float32").output
    assert widened.dtype == np.float32
    oracle.assert_answer({"output": widened}, RIGHT)
    narrowed = client.attend(*(t.astype(np.float32) for t in (Q, K, V)), output_dtype="bfloat16").output
    assert narrowed.dtype == ml_dtypes.bfloat16
    oracle.assert_answer({"output": narrowed}, RIGHT, "bfloat16")


def test_blocks(client):
    with client.attend_stream(Q, K, V) as blocks:
        assert {block.array.dtype for block in blocks} == {np.dtype(ml_dtypes.bfloat16)}


def test_a_bias_of_another_type(client):
    bias = np.random.default_rng(12).standard_normal((5, 9)).astype(ml_dtypes.bfloat16)
    got = client.scaled_dot_product_attention(Q, K, V, bias)
    oracle.assert_answer({"output": got}, oracle.attention(Q, K, V, bias=bias), "bfloat16")
