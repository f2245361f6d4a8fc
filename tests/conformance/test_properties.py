"""Random problems against the float64 formula, at the contract's tolerances. Seeds are fixed: a failure repeats."""

import numpy as np
import pytest

import oracle
import wire

# Around every power of two that a tile or a vector may end at.
EDGES = [1, 7, 8, 9, 15, 16, 17, 31, 32, 33, 63, 64, 65, 127, 128, 129, 255, 256, 257, 511, 512, 513]
TILED_OUTPUTS = ("weights", "lse", "scores_dot", "scores_scaled")
ALL_OUTPUTS = TILED_OUTPUTS + ("scores_capped", "scores_biased")


def draw(rng, batch, q_heads, kv_heads, q_rows, kv_rows, d_k, d_v):
    return (
        rng.standard_normal((batch, q_heads, q_rows, d_k)),
        rng.standard_normal((batch, kv_heads, kv_rows, d_k)),
        rng.standard_normal((batch, kv_heads, kv_rows, d_v)),
    )


def check(
    stub,
    call,
    q,
    k,
    v,
    *,
    dtypes=("float32",) * 3,
    output_dtype=None,
    outputs=TILED_OUTPUTS,
    reference=False,
    **options,
):
    """Sends the problem, and holds every tensor and statistic of the answer to the formula on the rounded inputs."""
    sent = tuple(wire.rounded(t, dtype) for t, dtype in zip((q, k, v), dtypes))
    answer = wire.CALLS[call](
        stub,
        wire.request(
            q, k, v, dtypes=dtypes, output_dtype=output_dtype, outputs=outputs, reference=reference, **options
        ),
    )
    if options.get("bias") is not None:
        options["bias"] = wire.rounded(options["bias"], options.get("bias_dtype", "float32"))
    options.pop("bias_dtype", None)
    for name in ("alibi_slopes", "sinks"):
        if options.get(name) is not None:
            options[name] = wire.rounded(np.asarray(options[name]), "float32")
    right = oracle.attention(*sent, **options)
    oracle.assert_answer(answer.values, right, output_dtype or dtypes[0], reference)
    assert answer.statistics.nonfinite_rows == np.count_nonzero(~np.isfinite(right.output).all(axis=-1))
    return answer, right


@pytest.mark.parametrize("size", EDGES)
@pytest.mark.parametrize("dimension", ["q_rows", "kv_rows", "d_k", "d_v"])
def test_sizes_around_tile_edges(stub, dimension, size):
    sizes = {"q_rows": 5, "kv_rows": 9, "d_k": 6, "d_v": 3, dimension: size}
    rng = np.random.default_rng([EDGES.index(size), len(dimension)])
    check(stub, "attend", *draw(rng, 2, 4, 2, **sizes))


@pytest.mark.parametrize("q_rows, kv_rows", [(1, 513), (129, 257), (257, 255), (513, 511), (128, 512), (300, 1)])
@pytest.mark.parametrize("causal", [False, True])
def test_several_tiles_each_way(stub, q_rows, kv_rows, causal):
    rng = np.random.default_rng([q_rows, kv_rows, causal])
    check(stub, "attend", *draw(rng, 1, 2, 1, q_rows, kv_rows, 64, 65), causal=causal)


def random_mask(rng, rank, shape):
    """Bool, of that rank, each kept dimension whole or 1."""
    kept = [size if rng.random() < 0.7 else 1 for size in shape[4 - rank :]]
    return rng.random(kept) < 0.7


def random_options(rng, batch, q_heads, q_rows, kv_rows):
    shape, options = (batch, q_heads, q_rows, kv_rows), {}
    if rng.random() < 0.4:
        options["scale"] = float(rng.choice([0.0, -1.0, 0.3, 2.5]))
    if rng.random() < 0.5:
        options["causal"] = True
    if rng.random() < 0.4:
        options["q_len"] = rng.integers(0, q_rows + 1, batch)
    if rng.random() < 0.4:
        options["kv_len"] = rng.integers(0, kv_rows + 1, batch)
    if rng.random() < 0.3 or ("kv_len" in options and "q_len" not in options):
        options["q_offset"] = rng.integers(-q_rows, kv_rows + 1, batch)
    if rng.random() < 0.5:
        options["mask"] = random_mask(rng, int(rng.integers(1, 5)), shape)
    if rng.random() < 0.5:
        kept = random_mask(rng, int(rng.integers(1, 5)), shape)
        options["bias"] = np.where(rng.random(kept.shape) < 0.15, -np.inf, 2 * rng.standard_normal(kept.shape))
        options["bias_dtype"] = str(rng.choice(["float32", "float16", "bfloat16"]))
    return options


def random_problem(rng):
    kv_heads = int(rng.integers(1, 4))
    sizes = {
        "batch": int(rng.integers(1, 4)),
        "q_heads": kv_heads * int(rng.integers(1, 4)),
        "kv_heads": kv_heads,
        "q_rows": int(rng.choice([1, 2, 5, 17, 33, 64, 130])),
        "kv_rows": int(rng.choice([1, 3, 16, 31, 65, 128, 260])),
        "d_k": int(rng.choice([1, 3, 8, 40, 64])),
        "d_v": int(rng.choice([1, 2, 8, 33, 64])),
    }
    return sizes, draw(rng, **sizes)


def random_rarer_options(rng, sizes):
    options = {}
    if rng.random() < 0.4:
        options["window_left"] = int(rng.integers(0, sizes["kv_rows"] + 1))
    if rng.random() < 0.3:
        options["window_right"] = int(rng.integers(0, sizes["kv_rows"] + 1))
    if rng.random() < 0.4:
        options["softcap"] = float(rng.choice([0.5, 2.0, 30.0]))
    if rng.random() < 0.4:
        options["alibi_slopes"] = rng.standard_normal(sizes["q_heads"])
    if rng.random() < 0.4:
        options["sinks"] = np.where(rng.random(sizes["q_heads"]) < 0.3, -np.inf, rng.standard_normal(sizes["q_heads"]))
    if sizes["d_k"] >= 8 and rng.random() < 0.5:
        options["rotary"] = {
            "style": str(rng.choice(["half", "interleaved"])),
            "dim": int(rng.choice([2, 4, 8])),
            "base": float(rng.choice([100.0, 10000.0])),
        }
        if rng.random() < 0.5:
            options["rotary"]["q_positions"] = rng.integers(0, 500, (sizes["batch"], sizes["q_rows"]))
            options["rotary"]["k_positions"] = rng.integers(0, 500, (sizes["batch"], sizes["kv_rows"]))
    return options


@pytest.mark.parametrize("reference", [False, True], ids=["tiled", "reference"])
@pytest.mark.parametrize("seed", range(200))
def test_random_options(stub, seed, reference):
    rng = np.random.default_rng(seed)
    sizes, tensors = random_problem(rng)
    how = {"reference": reference}
    if not reference:
        how["dtypes"] = tuple(str(d) for d in rng.choice(["float32", "float16", "bfloat16"], 3, p=[0.6, 0.2, 0.2]))
        how["output_dtype"] = str(rng.choice(["float32", "float16", "bfloat16"])) if rng.random() < 0.3 else None
    options = random_options(rng, sizes["batch"], sizes["q_heads"], sizes["q_rows"], sizes["kv_rows"])
    if seed % 2:
        options |= random_rarer_options(rng, sizes)
    if "kv_len" in options and "q_len" not in options and "q_offset" not in options:
        options["q_offset"] = np.zeros(sizes["batch"], int)
    answer, right = check(stub, ("attend", "stream")[seed % 3 == 0], *tensors, outputs=ALL_OUTPUTS, **how, **options)
    if "sinks" not in options:
        full = right.allowed.any(axis=-1)
        assert np.all(np.abs(answer["weights"].sum(axis=-1, dtype=np.float64)[full] - 1) <= 2e-6)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64"])
def test_dtypes_of_the_reply(stub, dtype):
    rng = np.random.default_rng(7)
    answer, _ = check(
        stub, "attend", *draw(rng, 1, 2, 2, 33, 65, 16, 16), dtypes=(dtype,) * 3, reference=dtype == "float64"
    )
    assert answer["output"].dtype.itemsize == {"float16": 2, "bfloat16": 4, "float64": 8}[dtype]
    assert answer["lse"].dtype == (np.float64 if dtype == "float64" else np.float32)
    assert answer["weights"].dtype == np.float32


@pytest.mark.parametrize("reference", [False, True], ids=["tiled", "reference"])
@pytest.mark.parametrize("call", wire.CALLS)
def test_nan_and_infinity_go_where_they_must_and_nowhere_else(stub, call, reference):
    rng = np.random.default_rng(11)
    q, k, v = draw(rng, 2, 4, 2, 70, 300, 16, 8)
    q[0, 1, 3] = np.nan  # its row, and no other
    k[0, 0, 5, 2] = np.nan  # rows of heads 0 and 1 that may see key 5
    k[1, 1, 290:] = np.nan  # beyond kv_len: nowhere
    v[1, 1, 280:] = np.inf  # likewise
    v[1, 0, 7, 4] = np.inf  # its own column, of rows that may see key 7
    v[0, 1, 9, 0] = np.nan
    mask = np.ones((2, 1, 70, 300), bool)
    mask[0, :, ::2, 5] = False
    mask[:, :, 1::3, 7] = False
    mask[:, :, :, 9] = False  # no row may see key 9
    _, right = check(
        stub,
        call,
        q,
        k,
        v,
        mask=mask,
        kv_len=[300, 280],
        q_len=[70, 70],
        reference=reference,
        outputs=("weights", "lse"),
    )
    assert 0 < np.isnan(right.output).sum() < right.output.size  # the problem does what it was made for


@pytest.mark.parametrize("reference", [False, True], ids=["tiled", "reference"])
def test_rows_of_only_infinities(stub, reference):
    rng = np.random.default_rng(12)
    q, k, v = draw(rng, 1, 1, 1, 4, 6, 2, 2)
    bias = np.zeros((4, 6))
    bias[0, 2] = np.inf  # a logit of +inf: the row is NaN
    bias[1] = -np.inf  # excluded everywhere: an empty row, not NaN
    q[0, 0, 2] = np.inf  # every logit is -inf: the row is NaN
    k[...] = -np.abs(k)
    _, right = check(stub, "attend", q, k, v, bias=bias, scale=1.0, reference=reference, outputs=("weights", "lse"))
    assert np.isnan(right.output[0, 0]).all(axis=-1).tolist() == [True, False, True, False]


@pytest.mark.parametrize("reference", [False, True], ids=["tiled", "reference"])
def test_rows_beyond_their_length_win_over_nan(stub, reference):
    q, k, v = draw(np.random.default_rng(13), 1, 1, 1, 9, 9, 4, 4)
    q[0, 0, 5:] = np.nan
    answer, _ = check(
        stub, "stream", q, k, v, q_len=[5], kv_len=[9], causal=True, reference=reference, outputs=("weights", "lse")
    )
    assert np.all(answer["output"][0, 0, 5:] == 0) and np.all(answer["lse"][0, 0, 5:] == -np.inf)


@pytest.mark.parametrize("sinks", [None, [100.0, -100.0]])
@pytest.mark.parametrize("scale", [200.0, 20000.0])
def test_large_logits(stub, scale, sinks):
    rng = np.random.default_rng(14)
    for rows in (3, 40):
        q, k, v = draw(rng, 1, 2, 2, rows, 300, 32, 8)
        check(stub, "attend", q, k, v, scale=scale, sinks=sinks)


def test_the_offsets_used_are_echoed(stub):
    q, k, v = draw(np.random.default_rng(15), 2, 1, 1, 3, 8, 4, 4)
    for options, used in (
        ({}, [5, 5]),
        ({"q_offset": [0, -1]}, [0, -1]),
        ({"q_len": [3, 2], "kv_len": [8, 4]}, [5, 2]),
    ):
        answer, _ = check(stub, "attend", q, k, v, causal=True, **options)
        assert list(answer.statistics.q_offset) == used


@pytest.mark.parametrize("seed", range(40))
def test_projections(stub, seed):
    rng = np.random.default_rng(2000 + seed)
    batch, rows, d_model, d_k, d_v = (
        int(rng.choice(c)) for c in ([1, 3], [1, 17, 130], [1, 6, 65, 200], [4, 32], [3, 32])
    )
    kv_heads = int(rng.integers(1, 3))
    q_heads, transposed, reference = kv_heads * int(rng.integers(1, 3)), bool(rng.random() < 0.5), seed % 4 == 3
    x = wire.rounded(rng.standard_normal((batch, rows, d_model)), "float32")
    widths = {"q": q_heads * d_k, "k": kv_heads * d_k, "v": kv_heads * d_v}
    w = {
        n: wire.rounded(rng.standard_normal((d_model, width)) / np.sqrt(d_model), "float32")
        for n, width in widths.items()
    }
    b = {
        n: wire.rounded(rng.standard_normal(width), "float32") if rng.random() < 0.6 else None
        for n, width in widths.items()
    }
    w_o = wire.rounded(rng.standard_normal((q_heads * d_v, 5)), "float32") if rng.random() < 0.5 else None
    sent = {f"w_{n}": w[n].T if transposed else w[n] for n in w} | {f"b_{n}": b[n] for n in b}
    sent["w_o"] = w_o.T if transposed and w_o is not None else w_o
    lengths = rng.integers(0, rows + 1, batch)
    message = wire.request(
        x=x,
        projection=wire.projection(q_heads, kv_heads, transposed=transposed, **sent),
        causal=True,
        lengths=lengths,
        outputs=("weights", "projected_q", "projected_k", "projected_v"),
        reference=reference,
    )
    answer = wire.CALLS[("attend", "stream")[seed % 2]](stub, message)
    heads = {"q": q_heads, "k": kv_heads, "v": kv_heads}
    right, slack = {}, {}
    for n in "qkv":
        plain = x.astype(np.float64) @ w[n] + (0 if b[n] is None else b[n])
        bound = np.abs(x).astype(np.float64) @ np.abs(w[n]) + (0 if b[n] is None else np.abs(b[n]))
        right[n] = plain.reshape(batch, rows, heads[n], -1).swapaxes(1, 2)
        slack[n] = 2.0**-24 * (d_model + 1) * bound.reshape(right[n].shape[0], rows, heads[n], -1).swapaxes(1, 2)
        oracle.assert_close(f"projected_{n}", answer[f"projected_{n}"], right[n], slack[n] + 2.0**-126)
    # The attention itself is held to its bound on the projected values that the server used.
    inner = oracle.attention(
        *(answer[f"projected_{n}"] if not reference else right[n] for n in "qkv"),
        causal=True,
        q_len=lengths,
        kv_len=lengths,
    )
    if w_o is None:
        oracle.assert_answer({name: answer[name] for name in ("output", "weights")}, inner, reference=reference)
        return
    assert answer["output"].shape == (batch, rows, 5)
    merged = inner.output.swapaxes(1, 2).reshape(batch, rows, -1)
    size = (4 + inner.magnitude.max(initial=0)) * max(inner.value_max.max(initial=0), 1e-30)
    bound = 2.0**-24 * (8 * size + merged.shape[-1]) * np.abs(w_o).sum(axis=0) * max(np.abs(merged).max(initial=0), 1.0)
    oracle.assert_close("output", answer["output"], merged @ w_o.astype(np.float64), bound)
