"""The cases that attention_cases.json describes in words: inputs built here, values as the case states them."""

import json
import math
import pathlib

import numpy as np
import pytest

import oracle
import wire

STATED = {
    case["id"]
    for case in json.loads((pathlib.Path(__file__).parent / "attention_cases.json").read_text())["cases"]
    if case["status"] == "generated"
}
COVERED = {"N1", "N2", "T1", "T3", "T5", "T7", "T8", "T9", "T10", "T11", "T13"}
calls = pytest.mark.parametrize("call", wire.CALLS)
modes = pytest.mark.parametrize("reference", [False, True], ids=["tiled", "reference"])


def test_no_case_is_left_out():
    assert STATED == COVERED


@calls
@modes
def test_n1_no_keys(stub, call, reference):
    message = wire.request(
        np.ones((1, 1, 2, 2)),
        np.ones((1, 1, 0, 2)),
        np.ones((1, 1, 0, 3)),
        outputs=("weights", "lse"),
        reference=reference,
    )
    answer = wire.CALLS[call](stub, message)
    assert answer["output"].shape == (1, 1, 2, 3) and np.all(answer["output"] == 0)
    assert answer["weights"].shape == (1, 1, 2, 0)
    assert answer["lse"].shape == (1, 1, 2) and np.all(answer["lse"] == -np.inf)


@calls
@modes
def test_n2_no_queries(stub, call, reference):
    message = wire.request(
        np.ones((1, 1, 0, 2)),
        np.ones((1, 1, 4, 2)),
        np.ones((1, 1, 4, 3)),
        outputs=("weights", "lse"),
        reference=reference,
    )
    answer = wire.CALLS[call](stub, message)
    assert answer["output"].shape == (1, 1, 0, 3)
    assert answer["weights"].shape == (1, 1, 0, 4)
    assert answer["lse"].shape == (1, 1, 0)


@calls
@pytest.mark.parametrize("keys", [1, 9, 33, 63, 64, 65, 127, 129, 255, 257, 513])
def test_t1_zeros_and_ones_are_exact_at_every_tile_size(stub, call, keys):
    """A soft cap of zeros is zeros: the same exact answer with and without it, in both modes."""
    zeros, ones = np.zeros((1, 1, keys, 1)), np.ones((1, 1, keys, 1))
    for options in ({"reference": True, "softcap": 2.0}, {"softcap": 2.0}, {}):
        answer = wire.CALLS[call](stub, wire.request(zeros[:, :, :1], zeros, ones, outputs=("lse",), **options))
        assert answer["output"].item() == 1.0
        assert answer["lse"].item() == pytest.approx(math.log(keys), abs=4e-6)


@calls
@modes
def test_t3_a_sum_of_4096_does_not_stick(stub, call, reference):
    zeros, ones = np.zeros((1, 1, 4096, 1)), np.ones((1, 1, 4096, 1))
    answer = wire.CALLS[call](
        stub, wire.request(zeros[:, :, :1], zeros, ones, dtype="float16", outputs=("weights",), reference=reference)
    )
    assert answer["output"].dtype == np.float16 and answer["output"].item() == 1.0
    assert np.all(answer["weights"] == 1 / 4096)


@calls
def test_t5_more_than_65535_sequences(stub, call):
    values = np.random.default_rng(5).standard_normal((70000, 1, 1, 1)).astype(np.float32)
    answer = wire.CALLS[call](stub, wire.request(np.ones_like(values), np.ones_like(values), values))
    np.testing.assert_array_equal(answer["output"], values)


@calls
@modes
def test_t7_what_is_excluded_may_hold_nan(stub, call, reference):
    q, k, v = (
        np.ones((1, 1, 1, 1)),
        np.array([1.0, np.nan]).reshape(1, 1, 2, 1),
        np.array([10.0, 20.0]).reshape(1, 1, 2, 1),
    )
    outputs = ("weights", "lse")
    answer = wire.CALLS[call](
        stub, wire.request(q, k, v, mask=[[1, 0]], outputs=outputs, scale=1.0, reference=reference)
    )
    assert answer["output"].item() == 10.0
    assert answer["weights"].ravel().tolist() == [1.0, 0.0]
    poisoned = np.full((1, 1, 8, 1), np.nan)
    poisoned[0, 0, :2, 0] = 1.0, 2.0
    values = poisoned * 10
    answer = wire.CALLS[call](
        stub, wire.request(q, poisoned, values, kv_len=[2], outputs=outputs, scale=1.0, reference=reference)
    )
    assert answer["output"].item() == pytest.approx(17.3105857863, rel=1e-6)
    assert np.all(answer["weights"].ravel()[2:] == 0)
    assert answer.statistics.nonfinite_rows == 0


@calls
@modes
def test_t8_nan_in_a_query_stays_in_its_row(stub, call, reference):
    q = np.array([np.nan, 1.0]).reshape(1, 1, 2, 1)
    k, v = (np.array(pair).reshape(1, 1, 2, 1) for pair in ([1.0, 2.0], [10.0, 20.0]))
    answer = wire.CALLS[call](stub, wire.request(q, k, v, scale=1.0, reference=reference))
    assert np.isnan(answer["output"][0, 0, 0, 0])
    assert answer["output"][0, 0, 1, 0] == pytest.approx(17.3105857863, rel=1e-6)
    assert answer.statistics.nonfinite_rows == 1


@calls
@modes
def test_t9_both_layouts_give_the_same_numbers(stub, call, reference):
    """The wire has no strides."""
    draw = np.random.default_rng(9).standard_normal
    q, k, v = draw((2, 4, 5, 6)), draw((2, 2, 7, 6)), draw((2, 2, 7, 3))
    plain = wire.CALLS[call](stub, wire.request(q, k, v, outputs=("weights",), reference=reference))
    swapped = wire.CALLS[call](
        stub,
        wire.request(
            *(t.transpose(0, 2, 1, 3) for t in (q, k, v)), layout="bnhd", outputs=("weights",), reference=reference
        ),
    )
    assert swapped["output"].shape == (2, 5, 4, 3)
    np.testing.assert_array_equal(swapped["output"].transpose(0, 2, 1, 3), plain["output"])
    assert swapped.raw["weights"] == plain.raw["weights"]
    oracle.assert_answer(
        plain.values, oracle.attention(*(wire.rounded(t, "float32") for t in (q, k, v))), reference=reference
    )


@calls
@pytest.mark.parametrize("batch", [2, 8, 64])
def test_t10_batch_mates_change_no_byte(stub, call, batch):
    """The threads' half of this case is test_same_bytes.py."""
    draw = np.random.default_rng(10).standard_normal
    q, k, v = draw((batch, 2, 37, 16)), draw((batch, 2, 53, 16)), draw((batch, 2, 53, 16))
    together = wire.CALLS[call](stub, wire.request(q, k, v, outputs=("lse",)))
    for b in (0, batch - 1):
        alone = wire.CALLS[call](stub, wire.request(*(t[b : b + 1] for t in (q, k, v)), outputs=("lse",)))
        assert alone["output"].tobytes() == together["output"][b].tobytes()
        assert alone["lse"].tobytes() == together["lse"][b].tobytes()


def merge(parts):
    """Partial answers (O, LSE) over disjoint keys, by the contract's own rule."""
    top = max(lse for _, lse in parts)
    if top == -np.inf:
        return 0.0
    weights = [math.exp(lse - top) for _, lse in parts]
    return sum(w * output for w, (output, _) in zip(weights, parts)) / sum(weights)


@calls
def test_t11_halves_merged_by_lse(stub, call):
    q = np.ones((1, 1, 1, 1))
    k, v = (np.array(pair).reshape(1, 1, 2, 1) for pair in ([1.0, 2.0], [10.0, 20.0]))

    def part(keys):
        answer = wire.CALLS[call](stub, wire.request(q, k[:, :, keys], v[:, :, keys], scale=1.0, outputs=("lse",)))
        return answer["output"].item(), answer["lse"].item()

    assert merge([part(slice(0, 1)), part(slice(1, 2))]) == pytest.approx(17.3105857863, rel=1e-6)
    whole, nothing = part(slice(0, 2)), part(slice(2, 2))
    assert nothing == (0.0, -np.inf)
    assert merge([whole, nothing]) == whole[0]


@calls
@modes
def test_t13_projection_multiplies_from_the_left(stub, call, reference):
    projection = wire.projection(
        1,
        1,
        w_q=[[1, 2], [3, 4]],
        w_k=[
            [
                1,
                0,
            ],
            [0, 1],
        ],
        w_v=[[1, 0, 0], [0, 1, 0]],
    )
    answer = wire.CALLS[call](
        stub,
        wire.request(
            x=np.array([[[1.0, 2.0]]]),
            projection=projection,
            reference=reference,
            outputs=("projected_q", "projected_k", "projected_v"),
        ),
    )
    assert answer["projected_q"].ravel().tolist() == [7, 10]
    assert answer["projected_k"].ravel().tolist() == [1, 2]
    assert answer["projected_v"].ravel().tolist() == [1, 2, 0]
    assert answer["output"].ravel().tolist() == [1, 2, 0]  # one key: its value
    wide = wire.projection(
        1, 1, w_q=np.ones((3, 2)), w_k=np.ones((3, 2)), w_v=[[1], [10], [100]]
    )  # d_model is not H * d
    answer = wire.CALLS[call](
        stub,
        wire.request(
            x=np.array([[[1.0, 2.0, 3.0]]]),
            projection=wide,
            reference=reference,
            outputs=("projected_q", "projected_v"),
        ),
    )
    assert answer["projected_q"].ravel().tolist() == [6, 6]
    assert answer["projected_v"].ravel().tolist() == [321]
