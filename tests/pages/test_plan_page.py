"""The page of attn plan in a real browser: nothing in the console, no request, charts and tables of the JSON's numbers,
and the lesson's figures marked where they belong."""

import json

import numpy as np
import pytest

from test_command_line import attn

LENGTHS = [1024 * 2**n for n in range(11)]
LAYERS = ["--shape=1,32/8,1,128", "--layers=32", "--dtype=bfloat16"]


@pytest.fixture
def planned(server, browser, tmp_path):
    def plan(*flags, **how):
        path = tmp_path / "plan.html"
        found = json.loads(attn(server, "plan", f"--html={path}", "--json", *flags).stdout)
        page = browser.open(path, **how)
        assert page.evaluate("data") == found
        return found, page

    return plan


def test_the_sweep_is_of_plans(server):
    swept = json.loads(attn(server, "plan", "--sweep", "--json", *LAYERS).stdout)
    assert [length["tokens"] for length in swept["lengths"]] == LENGTHS
    for length in swept["lengths"]:
        n = length.pop("tokens")
        assert length["scores_per_head"] == n**2
        assert length["multiply_adds"] == n**2 * 256 * 32 * 32
        assert length["naive_score_bytes"] == 4 * n**2 * 32 * 32
        assert length["request_bytes"] == 2 * n * 128 * (32 + 8 + 8)
    at_4096 = attn(server, "plan", "--shape=1,32/8,4096,128", *LAYERS[1:], "--json").stdout
    assert json.loads(at_4096) == swept["lengths"][2]
    small, large = swept["lengths"][5], swept["lengths"][10]
    assert large["memory_bytes"] < 33 * small["memory_bytes"]  # 32 times the tokens
    assert large["naive_score_bytes"] == 1024 * small["naive_score_bytes"]


def test_the_figures_of_the_lesson(server):
    figures = json.loads(attn(server, "plan", "--sweep", "--json").stdout)["figures"]
    assert [(figure["tokens"], figure["value"]) for figure in figures] == [
        (2048, 1_073_741_824),
        (2048, 9_895_604_649_984),
        (4096, 2_147_483_648),
        (4096, 64 << 20),
        (4096, 64 << 30),
        (128_000, 16_384_000_000),
        (131_072, 17_179_869_184),
    ]
    shown = attn(server, "plan", "--sweep").stdout
    for text in ("1048576", "9.90e12", "1.07e9", "2.15e9", "64 MiB", "64 GiB", "1.64e10", "1.72e10"):
        assert text in shown, text


@pytest.mark.parametrize("width", [390, 1280])
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_it_opens_clean_everywhere(planned, pictures, width, dark):
    _, page = planned(*LAYERS, width=width, dark=dark)
    page.screenshot(pictures / f"plan-{width}-{'dark' if dark else 'light'}.png")
    if width == 1280 and not dark:
        page.pdf(pictures / "plan.pdf")
    assert page.errors == [] and page.requests == []
    assert page.overflow() == 0 and page.cut_charts() == []


def test_charts_and_tables_hold_the_numbers(planned):
    found, page = planned(*LAYERS)
    series = page.evaluate(
        """Object.fromEntries([...document.querySelectorAll("svg.chart g.series[data-name]")].map((line) =>
             [line.dataset.name, [...line.querySelectorAll("circle")].map((dot) =>
               [Number(dot.dataset.x), Number(dot.dataset.y)])]))"""
    )
    for name, field, per in (
        ("scores", "scores_per_head", 1),
        ("multiply-adds for the scores", "score_multiply_adds_per_head", 1),
        ("multiply-adds of both products", "multiply_adds_per_head", 1),
        ("in tiles, all that this server holds", "memory_bytes", 1),
        ("whole scores, as the naive method holds them", "naive_score_bytes", 32),
        ("whole scores of one head", "naive_score_bytes_per_head", 1),
        ("all layers", "predicted_compute_us", 1e6),
    ):
        right = [[length["tokens"], length[field] / per] for length in found["lengths"]]
        np.testing.assert_allclose(series[name], right, err_msg=name)
    marks = page.evaluate(
        """[...document.querySelectorAll("svg.chart g.mark")].map((mark) =>
             [Number(mark.dataset.x), Number(mark.dataset.y), mark.textContent])"""
    )
    assert sorted(marks) == sorted(
        [
            [2048, 1_073_741_824, "1.07e9"],
            [4096, 2_147_483_648, "2.15e9"],
            [4096, 64 << 20, "64 MiB"],
            [128_000, 16_384_000_000, "1.64e10"],
            [131_072, 17_179_869_184, "1.72e10"],
        ]
    )
    rows = page.evaluate(
        """[...document.querySelectorAll("table[data-table=lengths] tbody tr")].map((row) =>
             [row.cells[0].innerText, ...[...row.cells].slice(1).map((cell) => JSON.parse(cell.dataset.value))])"""
    )
    fields = ["scores_per_head", "multiply_adds", "memory_bytes", "naive_score_bytes", "predicted_compute_us"]
    fields.append("admitted")
    assert rows == [[str(length["tokens"]), *(length[field] for field in fields)] for length in found["lengths"]]
    exactly = page.text("table[data-table=figures] td:nth-child(3)")
    assert exactly == [str(figure["value"]) for figure in found["figures"]]
