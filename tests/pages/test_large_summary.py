"""Weights of 16,384 tokens, a gibibyte of them, summarised without being held: closed forms, and the client's
memory."""

import json

import numpy as np

from attnd_server import BIN
from peak_memory import peak_kib

N = 16_384
CLIENT_BYTES_MAX = 300 << 20


def test_sixteen_thousand_tokens(server, browser, pictures, tmp_path):
    """A query of zeros weighs every key that it may see alike: row i each of i + 1 keys by 1 / (i + 1)."""
    zeros, ones = np.zeros((N, 8), np.float32), np.ones((N, 8), np.float32)
    for name, array in (("q", zeros), ("k", ones), ("v", ones)):
        np.save(tmp_path / f"{name}.npy", array)
    page = tmp_path / "page.html"
    flags = ["--causal", f"--html={page}", "--json", *(f"--{name}={tmp_path / f'{name}.npy'}" for name in "qkv")]
    with open(tmp_path / "json", "wb") as out:
        peak = peak_kib(BIN / "attn", "explain", f"--server={server.address}", *flags, stdout=out)
    assert peak << 10 < CLIENT_BYTES_MAX

    summary = json.loads((tmp_path / "json").read_text())["summary"]
    (head,) = summary["heads"]
    assert (summary["rows"], summary["keys"], summary["cell"]) == (N, N, 128)
    seen = np.arange(1, N + 1)
    np.testing.assert_allclose(head["entropy_bits"]["mean"], np.log2(seen).mean(), rtol=1e-5)
    np.testing.assert_allclose(head["effective_keys"]["mean"], seen.mean(), rtol=1e-5)
    np.testing.assert_allclose(head["keys_for_90_percent"]["mean"], np.ceil(0.9 * seen).mean(), rtol=1e-4)
    np.testing.assert_allclose(head["mean_distance"], (seen - 1).mean() / 2, rtol=1e-5)
    np.testing.assert_allclose(head["keys"][0]["mean_weight"], (1 / seen).mean(), rtol=1e-5)
    first = np.arange(0, N, 128)
    below = first[:, None] > first  # squares under the diagonal
    most, mean = np.array(head["heat"]["max"]), np.array(head["heat"]["mean"])
    np.testing.assert_allclose(most[below], np.broadcast_to(1 / (first[:, None] + 1), below.shape)[below], rtol=1e-5)
    of_rows = (1 / seen).reshape(-1, 128).mean(1)
    np.testing.assert_allclose(mean[below], np.broadcast_to(of_rows[:, None], below.shape)[below], rtol=2e-5)
    assert not most[below.T].any()

    opened = browser.open(page)
    opened.screenshot(pictures / "explain-large.png")
    assert opened.errors == [] and opened.requests == []
