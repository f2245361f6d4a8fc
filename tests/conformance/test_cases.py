"""Every case of attention_cases.json through the real server, by both calls, tiled and in reference mode.

Cases with status "generated" are built from their words in test_generated_cases.py.
"""

import json
import pathlib

import grpc
import numpy as np
import pytest

import oracle
import wire

CASES = json.loads((pathlib.Path(__file__).parent / "attention_cases.json").read_text())["cases"]
GIVEN = [case for case in CASES if case["status"] == "ok"]
REFUSED = {case["id"]: case for case in CASES if case["status"] == "error"}
# A case's parameter -> the field of Options that tiled mode refuses until it can compute it.
OUTPUTS = ("weights", "lse")


def numbers(nested):
    """JSON has no infinity: the cases write "-inf"."""
    return np.array(nested, dtype=object).astype(np.float64)


def options_of(case):
    """The case's parameters under the contract's names."""
    params = dict(case["params"])
    batch = len(case["Q"])
    options = {}
    for theirs, ours in (
        ("scale", "scale"),
        ("left", "window_left"),
        ("right", "window_right"),
        ("softcap", "softcap"),
        ("slopes", "alibi_slopes"),
        ("sinks", "sinks"),
    ):
        if theirs in params:
            options[ours] = params.pop(theirs)
    if "kv_len" in params:
        options["kv_len"] = [int(length) for length in params.pop("kv_len")]
    if "offset" in params:
        options["q_offset"] = [int(params.pop("offset"))] * batch
    causal = params.pop("causal", None)
    if causal is not None:
        options["causal"] = True
        if causal == "tl":
            options["q_offset"] = [0] * batch
    if "mask" in params:
        options["mask"] = numbers(params.pop("mask"))
    if "bias" in params:
        options["bias"] = numbers(params.pop("bias"))
    assert not params, f"{case['id']}: parameters this test does not know: {params}"
    return options


def dtype_of(case, reference):
    """What the case is sent as: float16 where it says so, else the widest type that the mode takes."""
    return "float16" if "fp16" in case.get("note", "") else "float64" if reference else "float32"


def request_of(case, dtype, **how):
    q, k, v = (numbers(case[name]) for name in "QKV")
    bias_dtype = "float64" if dtype == "float64" else "float32"
    return wire.request(q, k, v, dtype=dtype, outputs=OUTPUTS, bias_dtype=bias_dtype, **options_of(case), **how)


def right_of(case, dtype):
    """The case's own numbers; the formula gives only the sizes that its tolerances are made of."""
    q, k, v = (wire.rounded(numbers(case[name]), dtype) for name in "QKV")
    right = oracle.attention(q, k, v, **options_of(case))
    for field, letter in (("output", "O"), ("weights", "W"), ("lse", "LSE")):
        stated = numbers(case["expect"][letter]).reshape(getattr(right, field).shape)
        # The formula and the case must agree, or one of them has a slip.
        np.testing.assert_allclose(getattr(right, field), stated, rtol=1e-6, atol=1e-12)
        setattr(right, field, stated)
    return right


@pytest.mark.parametrize("call", wire.CALLS)
@pytest.mark.parametrize("case", GIVEN, ids=lambda case: case["id"])
def test_reference_mode_gives_the_stated_values(stub, call, case):
    dtype = dtype_of(case, True)
    answer = wire.CALLS[call](stub, request_of(case, dtype, reference=True))
    oracle.assert_answer(answer.values, right_of(case, dtype), dtype, reference=True)


@pytest.mark.parametrize("call", wire.CALLS)
@pytest.mark.parametrize("case", GIVEN, ids=lambda case: case["id"])
def test_tiled_mode_gives_the_stated_values(stub, call, case):
    dtype = dtype_of(case, False)
    answer = wire.CALLS[call](stub, request_of(case, dtype))
    oracle.assert_answer(answer.values, right_of(case, dtype), dtype)


def failure(call):
    with pytest.raises((grpc.RpcError, wire.ProblemFailed)) as caught:
        call()
    error = caught.value
    return (error.code, error.text) if isinstance(error, wire.ProblemFailed) else (error.code(), error.details())


@pytest.mark.parametrize("call", wire.CALLS)
@pytest.mark.parametrize(
    "case_id, shapes, named",
    [
        ("V1", ((1, 1, 5, 2), (1, 1, 5, 2), (1, 1, 6, 2)), "v: shape [1,1,6,2]"),
        ("V3", ((1, 4, 2, 2), (1, 3, 2, 2), (1, 3, 2, 2)), "3"),
    ],
)
def test_cases_that_are_refused(stub, call, case_id, shapes, named):
    assert case_id in REFUSED
    message = wire.request(*(np.zeros(shape) for shape in shapes))
    code, text = failure(lambda: wire.CALLS[call](stub, message))
    assert code == grpc.StatusCode.INVALID_ARGUMENT
    assert named in text


def test_a_shape_whose_product_overflows_is_refused(stub):
    """V5, by both calls: the shape alone is enough, no byte of data is needed."""
    assert "V5" in REFUSED
    message = wire.request(np.zeros((1, 1, 1, 2)), np.zeros((1, 1, 1, 2)), np.zeros((1, 1, 1, 2)))
    for name in "qkv":
        del getattr(message, name).shape[:]
        getattr(message, name).shape.extend([2**20, 2**20, 2**20, 2**20])
    for call in wire.CALLS.values():
        code, _ = failure(lambda call=call: call(stub, message))
        assert code in (grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.RESOURCE_EXHAUSTED)
