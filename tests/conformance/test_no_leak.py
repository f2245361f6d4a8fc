"""Nothing of one caller's data reaches another's answer: a secret in every tensor first, then a stranger's problem.

Builds for tests also poison memory between its uses (ATTND_POISON): an element that nobody wrote would come back as
NaN, and the answer would not be the one that the first server to see the problem gave.
"""

import numpy as np
import pytest

import wire
from attnd_server import AttndServer

SECRET = -2048.0  # exact in every type and in every sum of equal weights
KINDS = ("weights", "lse", "scores_dot", "scores_scaled", "scores_capped", "scores_biased")


def problems(value=None):
    """(name, request) of many shapes and options, with every output; `value` fills all tensors, else they are drawn."""
    draw = np.random.default_rng(1)

    def tensor(*shape):
        return draw.standard_normal(shape) if value is None else np.full(shape, value)

    def qkv(batch, q_heads, kv_heads, rows, keys, width, v_width):
        return (
            tensor(batch, q_heads, rows, width),
            tensor(batch, kv_heads, keys, width),
            tensor(batch, kv_heads, keys, v_width),
        )

    all_kinds = {"outputs": KINDS, "softcap": 30.0}
    yield "small", wire.request(*qkv(1, 1, 1, 3, 5, 7, 9), **all_kinds)
    yield "odd sizes", wire.request(*qkv(2, 3, 3, 77, 131, 33, 17), **all_kinds)
    yield "grouped, causal", wire.request(*qkv(2, 4, 2, 130, 260, 64, 64), causal=True, **all_kinds)
    yield "one query", wire.request(*qkv(1, 8, 2, 1, 5000, 64, 64), outputs=("lse",))
    yield "large", wire.request(*qkv(1, 2, 2, 1500, 1500, 64, 64), outputs=("lse",))
    ragged = {"q_len": [77, 0], "kv_len": [1, 131]}
    yield "ragged", wire.request(*qkv(2, 3, 3, 77, 131, 33, 17), **ragged, **all_kinds)
    yield "window", wire.request(*qkv(1, 2, 2, 200, 300, 16, 16), window_left=3, window_right=0, **all_kinds)
    yield "no keys", wire.request(*qkv(2, 2, 2, 5, 0, 8, 8), outputs=("lse",))
    yield "mask", wire.request(*qkv(1, 2, 2, 60, 70, 16, 16), mask=np.tri(60, 70), **all_kinds)
    bias = tensor(1, 2, 60, 70)
    yield "bias and sinks", wire.request(*qkv(1, 2, 2, 60, 70, 16, 16), bias=bias, sinks=[0.5, 1.0], **all_kinds)
    alibi = {"alibi_slopes": [0.5, 0.25], "rotary": {"style": "half", "dim": 8}}
    yield "alibi and rotary", wire.request(*qkv(1, 2, 2, 60, 70, 16, 16), **alibi, **all_kinds)
    yield "layout", wire.request(tensor(2, 50, 3, 16), tensor(2, 60, 3, 16), tensor(2, 60, 3, 24), layout="bnhd")
    pages = np.array([[0, 2, 1], [1, 1, 0]])
    yield "pages", wire.request(tensor(2, 2, 20, 16), tensor(3, 2, 16, 16), tensor(3, 2, 16, 8), page_table=pages)
    yield "float16", wire.request(*qkv(1, 2, 2, 70, 90, 40, 40), dtype="float16", outputs=("lse",))
    yield "bfloat16", wire.request(*qkv(1, 2, 2, 70, 90, 40, 40), dtype="bfloat16", output_dtype="float32")
    yield "reference", wire.request(*qkv(1, 2, 2, 30, 40, 16, 16), reference=True, **all_kinds)
    weights = {f"w_{n}": tensor(24, 32) for n in "qkv"} | {"w_o": tensor(32, 20), "b_o": tensor(20)}
    projected = {"outputs": ("lse", "projected_q", "projected_k", "projected_v"), "lengths": [50, 11]}
    yield "projections", wire.request(x=tensor(2, 50, 24), projection=wire.projection(2, 2, **weights), **projected)


@pytest.fixture(scope="module")
def fresh_answers():
    """What each problem's answer is on a server that has seen nothing but these."""
    with AttndServer() as server:
        return {name: wire.attend(server.stub(), request).raw for name, request in problems()}


@pytest.mark.parametrize("secret_call", wire.CALLS)
@pytest.mark.parametrize("call", wire.CALLS)
def test_a_stranger_after_a_secret(fresh_answers, secret_call, call):
    secrets = dict(problems(SECRET))
    with AttndServer("--threads=1") as server:
        for name, request in problems():
            # The same sizes, so that every buffer is taken again; and sizes beyond, so that some are not filled.
            for secret in (name, "large"):
                wire.CALLS[secret_call](server.stub(), secrets[secret])
            server.close_channels()
            answer = wire.CALLS[call](server.stub(), request)
            assert answer.raw == fresh_answers[name], name
            for kind, values in answer.values.items():
                assert not np.any(values == SECRET) and not np.any(np.isnan(values)), (name, kind)
            server.close_channels()


def test_the_secret_would_be_seen(fresh_answers):
    """It is in the secret's own answer: attention over values that are all the same gives that value."""
    with AttndServer() as server:
        for name, request in problems(SECRET):
            if name in ("small", "large", "grouped, causal"):
                assert np.all(wire.attend(server.stub(), request)["output"] == SECRET), name
    assert fresh_answers
