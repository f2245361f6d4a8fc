"""attn explain against a real server: its lesson against the formula in float64, its statistics of weights against
NumPy on the very weights that the server gives whoever asks for them."""

import json

import numpy as np
import pytest

import oracle
from test_command_line import NPZ, attn


def explained(server, *arguments):
    return json.loads(attn(server, "explain", *arguments, "--json").stdout)


def save(folder, **arrays):
    for name, array in arrays.items():
        np.save(folder / f"{name}.npy", array)
    return [f"--{name}={folder / f'{name}.npy'}" for name in arrays]


def heads(rng, q_heads, kv_heads, rows, keys, width, batch=1):
    q = rng.standard_normal((batch, q_heads, rows, width))
    k, v = (rng.standard_normal((batch, kv_heads, keys, width)) for _ in "kv")
    return {"q": q.astype(np.float32), "k": k.astype(np.float32), "v": v.astype(np.float32)}


def numbers(rows):
    """Nested lists with null for what is excluded, as an array with -inf there."""
    return np.array([[-np.inf if value is None else value for value in row] for row in rows], float)


def test_the_lesson(server):
    lesson = explained(server)["lesson"]
    assert [key["name"] for key in lesson["keys"]] == ["server", "request", "it"]
    assert [query["name"] for query in lesson["queries"]] == ["it"]
    (head,) = lesson["heads"]
    np.testing.assert_allclose(head["dot"], [[2.4, 0.1, 0.5]], atol=1e-7)
    np.testing.assert_allclose(head["scaled"], [[1.2, 0.05, 0.25]], atol=1e-7)
    np.testing.assert_allclose(head["weights"], [[0.5871, 0.1859, 0.2270]], atol=5e-5)
    np.testing.assert_allclose(head["mixed"], [[0.6151, 0.2941, 0.5616, 0.5337]], atol=5e-5)
    assert lesson["queries"][0]["before"] == [0.3, 0.3, 0.5, 0.2]
    assert lesson["scale"] == 0.5 and lesson["d_k"] == 4


@pytest.mark.parametrize("options, flags", [({}, []), ({"softcap": 2.0, "sinks": [0.5, -1, 0, 2]}, None)])
def test_every_head_and_row_of_a_small_problem(server, tmp_path, options, flags):
    arrays = heads(np.random.default_rng(11), 4, 2, 5, 7, 6, batch=2)
    flags = ["--softcap=2", "--sinks=0.5,-1,0,2"] if flags is None else flags
    chosen = ["--causal", "--sequence=1", "--row=2", "--head=3"]
    lesson = explained(server, *save(tmp_path, **arrays), *chosen, *flags)["lesson"]
    right = oracle.attention(*arrays.values(), causal=True, **options)
    assert (lesson["row"], lesson["head"], lesson["sequence"]) == (2, 3, 1)
    assert [query["name"] for query in lesson["queries"]] == [f"token {i + 2}" for i in range(5)]
    for h, head in enumerate(lesson["heads"]):
        assert (head["head"], head["kv_head"]) == (h, h // 2)
        np.testing.assert_array_equal(np.float32(head["query"]), arrays["q"][1, h])
        np.testing.assert_array_equal(np.float32(head["key"]), arrays["k"][1, h // 2])
        np.testing.assert_array_equal(np.float32(head["value"]), arrays["v"][1, h // 2])
        steps = ["dot", "scaled"] + (["capped"] if "softcap" in options else [])
        for step in steps:
            np.testing.assert_allclose(numbers(head[step]), right.scores[step][1, h], atol=1e-5)
        np.testing.assert_allclose(head["weights"], right.weights[1, h], atol=1e-6)
        np.testing.assert_allclose(head["mixed"], right.output[1, h], atol=1e-5)
        assert ("sink" in head) == ("sinks" in options)
    np.testing.assert_allclose(lesson["queries"][2]["after"], right.output[1, 3, 2], atol=1e-5)


def test_one_row_of_a_large_problem(server, tmp_path):
    arrays = heads(np.random.default_rng(12), 4, 2, 300, 400, 8)
    found = explained(server, *save(tmp_path, **arrays), "--row=7", "--head=2")
    assert list(found) == ["lesson"]
    lesson = found["lesson"]
    (head,) = lesson["heads"]
    assert (head["head"], head["kv_head"], lesson["keys_in_all"]) == (2, 1, 400)
    weights = oracle.attention(*arrays.values()).weights[0, 2, 7]
    shown = [key["key"] for key in lesson["keys"]]
    assert shown == sorted(np.argsort(-weights)[:12])
    np.testing.assert_allclose(head["weights"][0], weights[shown], atol=1e-6)


def test_a_lesson_from_x(server):
    given = np.load(NPZ)
    lesson = explained(server, f"--npz={NPZ}", "--wire_dtype=float32", "--labels=a,b,c,d,e")["lesson"]
    (head,) = lesson["heads"]
    for name, stated in (("query", "Q"), ("key", "K"), ("value", "V"), ("weights", "W"), ("mixed", "O")):
        np.testing.assert_allclose(head[name], given[stated].reshape(np.shape(head[name])), atol=2e-6)
    np.testing.assert_allclose(lesson["queries"][1]["before"], given["X"].reshape(5, 64)[1], atol=1e-7)


# What the weights of a head look like.


def statistics(w, position):
    """By row, in NumPy float64, of weights [rows, keys] whose row 0 stands at `position`: entropy in bits, fewest keys
    with 90 % of the weight, mean distance; and the share of weight at each distance. Only of rows that weigh a key."""
    w = w.astype(np.float64)
    total = w.sum(1)
    counted = np.flatnonzero(np.isfinite(total) & (total > 0))
    share = w[counted] / total[counted, None]
    with np.errstate(divide="ignore", invalid="ignore"):
        entropy = -np.where(share > 0, share * np.log2(share), 0).sum(1)
    held = np.cumsum(-np.sort(-share, axis=1), axis=1)
    keys_for_90 = (held < 0.9 - 1e-12).sum(1) + 1
    away = (position + counted)[:, None] - np.arange(w.shape[1])
    return counted, entropy, keys_for_90, (share * abs(away)).sum(1), share, away


def assert_spread(found, values):
    for name, value in (("min", np.min), ("median", np.median), ("mean", np.mean), ("max", np.max)):
        np.testing.assert_allclose(found[name], value(values), rtol=2e-5, atol=2e-6)


def assert_summary(summary, weights, position):
    """weights [heads, rows, keys]."""
    rows, keys = weights.shape[1:]
    cell = summary["cell"]
    assert (summary["rows"], summary["keys"], summary["position"]) == (rows, keys, position)
    for head, w in zip(summary["heads"], weights, strict=True):
        counted, entropy, keys_for_90, distance, share, away = statistics(w, position)
        finite = np.isfinite(w).all(1)
        assert head["empty_rows"] == (finite & (w.sum(1) == 0)).sum()
        assert head["nonfinite_rows"] == (~finite).sum()
        assert_spread(head["entropy_bits"], entropy)
        assert_spread(head["effective_keys"], 2**entropy)
        assert_spread(head["keys_for_90_percent"], keys_for_90)
        np.testing.assert_allclose(head["mean_distance"], distance.mean(), rtol=2e-5)
        np.testing.assert_allclose(head["mean_row_sum"], w[counted].astype(float).sum(1).mean(), rtol=2e-5)
        for row in head["rows"]:
            (at,) = np.flatnonzero(counted == row["row"]) if row["row"] in counted else (None,)
            if at is None:
                assert row["entropy_bits"] is None and row["top"] == []
                continue
            np.testing.assert_allclose(row["entropy_bits"], entropy[at], rtol=2e-5, atol=2e-6)
            np.testing.assert_allclose(row["effective_keys"], 2 ** entropy[at], rtol=2e-5)
            assert row["keys_for_90_percent"] == keys_for_90[at]
            best = np.argsort(-w[row["row"]], kind="stable")[:3]
            assert [top["key"] for top in row["top"]] == [j for j in best if w[row["row"], j] > 0]
            np.testing.assert_array_equal([np.float32(top["weight"]) for top in row["top"]],
                                          [x for x in w[row["row"], best] if x > 0])
        bins = head["distances"]
        assert all(a["to"] + 1 == b["from"] for a, b in zip(bins, bins[1:]))
        assert (bins[0]["from"], bins[-1]["to"]) == (position - keys + 1, position + rows - 1)
        for found in bins:
            inside = (away >= found["from"]) & (away <= found["to"])
            right = np.where(inside, share, 0).sum(1).mean()
            np.testing.assert_allclose(found["share"], right, rtol=2e-5, atol=1e-9)
        received = np.where(np.isin(np.arange(rows), counted)[:, None], w, 0).astype(float).sum(0) / len(counted)
        tenth = (w[counted] >= np.float32(0.1) * w[counted].astype(float).sum(1)[:, None]).mean(0)
        listed = [key["key"] for key in head["keys"]]
        np.testing.assert_allclose([key["mean_weight"] for key in head["keys"]], np.sort(received)[::-1][:8], rtol=2e-5)
        np.testing.assert_allclose([key["mean_weight"] for key in head["keys"]], received[listed], rtol=2e-5)
        np.testing.assert_allclose([key["rows_with_a_tenth"] for key in head["keys"]], tenth[listed], rtol=2e-5)
        assert [key["sink"] for key in head["keys"]] == list(tenth[listed] >= 0.5)
        assert_heat(head["heat"], w[finite], np.flatnonzero(finite), cell, (rows, keys))


def assert_heat(heat, w, at, cell, size):
    """w: the finite rows, which stand at `at`; size: of all."""
    whole = np.zeros(size)
    whole[at] = w
    down, across = (np.arange(0, n, cell) for n in size)
    most = np.maximum.reduceat(np.maximum.reduceat(whole, down, axis=0), across, axis=1)
    sums = np.add.reduceat(np.add.reduceat(whole, down, axis=0), across, axis=1)
    entries = np.bincount(at // cell, minlength=len(down))[:, None] * np.diff([*across, size[1]])
    np.testing.assert_allclose(heat["max"], most, rtol=1e-5)
    np.testing.assert_allclose(heat["mean"], sums / np.maximum(entries, 1), rtol=2e-5, atol=1e-14)


def server_weights(server, folder, flags):
    attn(server, "run", *flags, f"--weights={folder / 'w.npy'}")
    return np.load(folder / "w.npy")


def test_a_causal_head_and_its_neighbours(server, tmp_path):
    flags = [*save(tmp_path, **heads(np.random.default_rng(21), 4, 2, 150, 170, 16)), "--causal"]
    summary = explained(server, *flags)["summary"]  # large enough to be summarised without being told to
    assert summary["cell"] == 2
    assert_summary(summary, server_weights(server, tmp_path, flags)[0], 20)


def test_empty_rows_nonfinite_rows_sinks_and_lengths(server, tmp_path):
    arrays = heads(np.random.default_rng(22), 2, 1, 40, 60, 8, batch=2)
    arrays["q"][1, 1, 5] = np.nan
    mask = np.ones((2, 1, 40, 60), bool)
    mask[1, 0, 9] = False
    mask[1, 0, 11, 1:] = False
    flags = [*save(tmp_path, **arrays, mask=mask), "--q_len=40,37", "--kv_len=60,50", "--sinks=1,-inf", "--sequence=1"]
    summary = explained(server, *flags, "--summary")["summary"]
    assert summary["heads"][0]["empty_rows"] == 1 + 3 and summary["heads"][1]["nonfinite_rows"] == 1
    assert summary["heads"][0]["mean_row_sum"] < 0.999
    assert_summary(summary, server_weights(server, tmp_path, flags[:-1])[1], 13)


@pytest.mark.parametrize("rows, keys", [(1, 1), (1, 5), (7, 1), (129, 3), (2, 300)])
def test_sizes_at_the_edges(server, tmp_path, rows, keys):
    flags = save(tmp_path, **heads(np.random.default_rng(rows + keys), 1, 1, rows, keys, 3))
    summary = explained(server, *flags, "--summary")["summary"]
    assert_summary(summary, server_weights(server, tmp_path, flags)[0], keys - rows)


def test_rows_that_come_in_pieces(tmp_path):
    """Blocks of less than a row."""
    from attnd_server import AttndServer

    arrays = heads(np.random.default_rng(23), 2, 1, 30, 2500, 8)
    flags = save(tmp_path, **arrays)
    with AttndServer("--block_bytes=4096") as small_blocks:
        summary = explained(small_blocks, *flags, "--summary")["summary"]
        assert_summary(summary, server_weights(small_blocks, tmp_path, flags)[0], 2470)


def test_a_sink_is_found(server, tmp_path):
    arrays = heads(np.random.default_rng(24), 1, 1, 100, 100, 8)
    arrays["q"][..., 0], arrays["k"][0, 0, 3, 0] = 3, 9
    shown = explained(server, *save(tmp_path, **arrays), "--summary")["summary"]["heads"][0]["keys"]
    assert shown[0]["key"] == 3 and shown[0]["sink"] and shown[0]["mean_weight"] > 0.5
    assert not any(key["sink"] for key in shown[1:])


def test_nothing_to_summarise(server, tmp_path):
    flags = save(tmp_path, **heads(np.random.default_rng(25), 1, 1, 3, 4, 2))
    for name in "kv":
        np.save(tmp_path / f"{name}.npy", np.zeros((1, 1, 0, 2), np.float32))
    (head,) = explained(server, *flags, "--summary")["summary"]["heads"]
    assert head["empty_rows"] == 3 and head["entropy_bits"]["mean"] is None and head["keys"] == []
    assert "there are no keys to explain" in attn(server, "explain", *flags, code=1).stderr
    assert attn(server, "explain", *flags, "--summary").stdout


def test_why_scale(server):
    """Closed forms: q · k of d products of variance 1 spreads by √d; the weights of n scores that spread by 1 have
    the entropy of a log-normal share, log2 n - 1 / (2 ln 2) bits."""
    why = explained(server, "--why_scale")["why_scale"]
    assert [width["d"] for width in why["widths"]] == [4 * 2**n for n in range(9)]
    for width in why["widths"]:
        np.testing.assert_allclose(width["unscaled"]["spread"], np.sqrt(width["d"]), rtol=0.08)
        np.testing.assert_allclose(width["scaled"]["spread"], 1, rtol=0.08)
        np.testing.assert_allclose(width["scaled"]["entropy_bits"], np.log2(128) - 0.5 / np.log(2), atol=0.12)
        np.testing.assert_allclose(width["scaled"]["effective_keys"], 2 ** width["scaled"]["entropy_bits"], rtol=1e-4)
    entropies = [width["unscaled"]["entropy_bits"] for width in why["widths"]]
    assert entropies == sorted(entropies, reverse=True) and entropies[0] > 4 and entropies[-1] < 0.4


def test_tables(server, tmp_path):
    """What is printed is what --json says."""
    flags = save(tmp_path, **heads(np.random.default_rng(26), 2, 2, 80, 80, 4))
    summary = explained(server, *flags)["summary"]
    shown = attn(server, "explain", *flags).stdout
    for head in summary["heads"]:
        assert f"{head['entropy_bits']['mean']:.2f}" in shown and f"{head['effective_keys']['mean']:.1f}" in shown
    for key in summary["heads"][0]["keys"]:
        assert key["name"] in shown
    assert max(map(len, shown.splitlines())) <= 100
    why = explained(server, "--why_scale")["why_scale"]
    shown = attn(server, "explain", "--why_scale").stdout
    for width in why["widths"]:
        assert f"{width['unscaled']['spread']:.2f}" in shown
    assert "0.5871" in shown


def test_a_row_beside_the_summary(server, tmp_path):
    flags = save(tmp_path, **heads(np.random.default_rng(27), 1, 1, 80, 80, 4))
    assert list(explained(server, *flags)) == ["summary"]
    assert list(explained(server, *flags, "--row=3")) == ["lesson"]
    assert list(explained(server, *flags, "--row=3", "--summary", "--why_scale")) == ["summary", "lesson", "why_scale"]
    assert "the problem has 80 rows" in attn(server, "explain", *flags, "--row=80", code=2).stderr
