"""The pages of attn explain in a real browser: nothing in the console, no request, every number the JSON's, every cell
reached from the keyboard, and what a cell is made of adds up."""

import json
import re

import numpy as np
import pytest

from test_command_line import NPZ, attn


def shown(value, digits):
    """A number as the page writes it."""
    if value is None:
        return "–"
    return f"{value:.{digits}f}".replace("-", "−")


def number(text):
    return float(text.replace("−", "-"))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Problems as .npy: 'small' (1, 4/2, 5, 5, 6) and 'large' (1, 2, 200, 200, 16)."""
    folder = tmp_path_factory.mktemp("explain")
    rng = np.random.default_rng(61)
    for name, q_heads, kv_heads, rows, width in (("small", 4, 2, 5, 6), ("large", 2, 2, 200, 16)):
        for letter, heads in (("q", q_heads), ("k", kv_heads), ("v", kv_heads)):
            array = rng.standard_normal((1, heads, rows, width)).astype(np.float32)
            np.save(folder / f"{name}_{letter}.npy", array)
    return folder


def tensors(folder, name):
    return [f"--{letter}={folder / f'{name}_{letter}.npy'}" for letter in "qkv"]


@pytest.fixture
def explained(server, browser, folder):
    """(JSON, open page) of attn explain with these flags; the page's data are that JSON."""

    def explain(*flags, **how):
        path = folder / "page.html"
        found = json.loads(attn(server, "explain", *flags, f"--html={path}", "--json").stdout)
        page = browser.open(path, **how)
        assert page.evaluate("data") == found
        return found, page

    return explain


def cells(page, grid):
    """[(text, value)] by row of a grid of numbers."""
    return page.evaluate(
        f"""[...document.querySelectorAll('table[data-grid="{grid}"] tbody tr')].map((row) =>
              [...row.querySelectorAll("td")].map((cell) => [cell.innerText, JSON.parse(cell.dataset.value)]))"""
    )


def flags_of(kind, folder):
    return {
        "lesson": ["--why_scale"],
        "heads": [*tensors(folder, "small"), "--causal", "--labels=the,cat,sat,on,mat"],
        "x": [f"--npz={NPZ}", "--wire_dtype=float32"],
        "summary": [*tensors(folder, "large"), "--causal", "--row=7"],
    }[kind] + (["--summary"] if kind == "summary" else [])


@pytest.mark.parametrize("kind", ["lesson", "heads", "x", "summary"])
@pytest.mark.parametrize("width", [390, 1280])
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_it_opens_clean_everywhere(explained, folder, pictures, kind, width, dark):
    _, page = explained(*flags_of(kind, folder), width=width, dark=dark)
    page.screenshot(pictures / f"explain-{kind}-{width}-{'dark' if dark else 'light'}.png")
    if width == 1280 and not dark:
        page.pdf(pictures / f"explain-{kind}.pdf")
    assert page.errors == [] and page.requests == []
    assert page.overflow() == 0 and page.cut_charts() == []
    ink, paper = page.evaluate("['color', 'backgroundColor'].map((name) => getComputedStyle(document.body)[name])")
    brightness = [sum(map(int, re.findall(r"\d+", colour)[:3])) for colour in (ink, paper)]
    assert (brightness[0] > brightness[1]) == dark and abs(brightness[0] - brightness[1]) > 400


@pytest.mark.parametrize("kind", ["lesson", "heads", "x"])
def test_every_number_of_the_lesson_is_the_json_s(explained, folder, kind):
    found, page = explained(*flags_of(kind, folder))
    lesson = found["lesson"]
    for head in lesson["heads"]:
        for step in ("dot", "scaled", "weights", "mixed", "query", "key", "value"):
            grid = cells(page, f"{step}-{head['head']}")
            assert [[value for _, value in row] for row in grid] == [row[:64] for row in head[step]]
            texts = [text for row in grid for text, _ in row]
            if len(head[step][0]) > 8 and step in ("mixed", "query", "key", "value"):
                assert not any(texts)  # shades stand for long vectors
                continue
            digits = max(len(text.partition(".")[2]) for text in texts)
            assert digits in (2, 4)
            assert texts == [shown(value, digits) for row in head[step] for value in row]


def test_the_lesson_s_own_digits(explained):
    _, page = explained()
    assert [row[0] for row in cells(page, "dot-0")[0]] == ["2.40", "0.10", "0.50"]
    assert [row[0] for row in cells(page, "scaled-0")[0]] == ["1.20", "0.05", "0.25"]
    assert [row[0] for row in cells(page, "weights-0")[0]] == ["0.5871", "0.1859", "0.2270"]
    assert [row[0] for row in cells(page, "mixed-0")[0]] == ["0.6151", "0.2941", "0.5616", "0.5337"]
    assert "1·1 + 0·0 + 0.5·0.8 + 1·1 = 2.40" in page.text("dl[data-spelt=dot]")[0]


def readout(page):
    return page.text(".readout .what")[0], page.text(".readout .how")[0]


def total(text):
    """What a sum of products in the text adds up to, and what the text says it does."""
    products, _, result = text.rpartition(" = ")
    terms = [[number(factor.strip("() ")) for factor in term.split("·")] for term in products.split(" + ")]
    return sum(left * right for left, right in terms), number(result), len(terms)


def test_hovering_a_cell_shows_its_sum_of_products(explained, folder):
    found, page = explained(*flags_of("heads", folder))
    head = found["lesson"]["heads"][2]
    for r, c in ((0, 0), (3, 1), (4, 4)):
        page.hover(f"table[data-grid=dot-2] td[data-row='{r}'][data-column='{c}']")
        what, how = readout(page)
        assert what == f"score of {'the cat sat on mat'.split()[r]} for {'the cat sat on mat'.split()[c]}, head 2"
        added, said, terms = total(how)
        assert terms == 6
        np.testing.assert_allclose(said, head["dot"][r][c], atol=5.1e-5)
        np.testing.assert_allclose(added, head["dot"][r][c], rtol=1e-3, atol=2e-3)
    page.hover("table[data-grid=dot-2] td[data-row='0'][data-column='3']")
    assert readout(page)[1] == "excluded: this key takes no part"
    page.hover("table[data-grid=mixed-2] td[data-row='4'][data-column='5']")
    added, said, terms = total(readout(page)[1])
    assert terms == 5 and abs(said - head["mixed"][4][5]) < 5.1e-5 and abs(added - said) < 2e-3
    page.hover("h1")
    assert not page.evaluate("readout.element.checkVisibility()")


def test_the_keyboard_reaches_every_cell(explained, folder):
    """Tab goes from grid to grid, arrows through a grid; each cell shows the sum it is."""
    found, page = explained(*flags_of("heads", folder))
    heads = found["lesson"]["heads"]
    grids = page.evaluate("[...document.querySelectorAll('table[role=grid]')].map((grid) => grid.dataset.grid)")
    assert len(grids) == 4 * 7
    focused = "document.activeElement.closest('table')?.dataset.grid"
    walked = []
    for _ in grids:
        page.press("Tab")
        walked.append(page.evaluate(focused))
    assert walked == grids
    page.evaluate("document.querySelector('table[data-grid=dot-1] td[role=gridcell]').focus()")
    seen = {}
    for r in range(5):
        for c in range(5):
            at = page.evaluate("[document.activeElement.dataset.row, document.activeElement.dataset.column]")
            assert at == [str(r), str(c)]
            seen[r, c] = readout(page)[1]
            page.press("ArrowRight")
        page.press("Home")
        page.press("ArrowDown")
    for (r, c), how in seen.items():
        if heads[1]["dot"][r][c] is None:
            assert how == "excluded: this key takes no part"
        else:
            assert how.endswith(f"= {shown(heads[1]['dot'][r][c], 4)}")
    # The row that has the focus is spelt out, and is where Tab comes back to.
    page.press("ArrowUp")
    assert page.text("dl[data-spelt=weights] .whose") == ["for on, head 1"]
    page.press("Tab")
    page.press("Tab", shift=True)
    assert page.evaluate("document.activeElement.dataset.row") == "3"


def test_every_number_of_the_summary_is_the_json_s(explained, folder):
    found, page = explained(*tensors(folder, "large"), "--causal")
    summary = found["summary"]
    table = lambda name: page.evaluate(  # noqa: E731
        f"""[...document.querySelectorAll('table[data-table={name}] tbody tr')].map((row) =>
              [...row.querySelectorAll("th, td")].map((cell) => cell.innerText))"""
    )
    for head, row in zip(summary["heads"], table("heads"), strict=True):
        assert row[:5] == [
            str(head["head"]),
            shown(head["entropy_bits"]["mean"], 2),
            shown(head["effective_keys"]["mean"], 1),
            shown(head["keys_for_90_percent"]["mean"], 1),
            shown(head["mean_distance"], 1),
        ]
        assert row[6] == str(head["empty_rows"])
    for n, head in enumerate(summary["heads"]):
        page.evaluate(f"document.querySelector('input[name=Head][value=\"{n}\"]').click()")
        rows = table("rows")
        assert [row[:4] for row in rows] == [
            [str(row["row"]), shown(row["entropy_bits"], 2), shown(row["effective_keys"], 1),
             str(row["keys_for_90_percent"])]
            for row in head["rows"]
        ]
        for row, right in zip(rows, head["rows"], strict=True):
            listed = re.findall(r"key (\d+) \(([^)]+)\)", row[4])
            assert [int(key) for key, _ in listed] == [key["key"] for key in right["top"]]
            np.testing.assert_allclose([float(w) for _, w in listed], [k["weight"] for k in right["top"]], rtol=5e-4)
        keys = table("keys")
        assert [row[0] for row in keys] == [key["name"] for key in head["keys"]]
        np.testing.assert_allclose([float(row[1]) for row in keys], [k["mean_weight"] for k in head["keys"]], rtol=5e-4)
        bins = [bin for bin in head["distances"] if bin["to"] >= 0]
        assert [row[1] for row in table("distances")] == [f"{100 * bin['share']:.1f} %" for bin in bins]
        points = page.evaluate(
            """[...document.querySelectorAll("svg.chart g.series[data-name='effective keys'] circle")].map((dot) =>
                 [Number(dot.dataset.x), Number(dot.dataset.y)])"""
        )
        assert points == [[row["row"], row["effective_keys"]] for row in head["rows"]]


def test_the_heat_map_is_walked_by_keyboard_and_painted_from_the_numbers(explained, folder):
    found, page = explained(*tensors(folder, "large"), "--causal")
    heat = found["summary"]["heads"][1]["heat"]
    page.evaluate("document.querySelector('canvas[data-head=\"1\"]').focus()")
    for key, (r, c) in (("ArrowDown", (1, 0)), ("ArrowRight", (1, 1)), ("PageDown", (99, 1)), ("End", (99, 99))):
        page.press(key)
        what, how = readout(page)
        assert what == f"head 1, rows {2 * r} to {2 * r + 1}, keys {2 * c} to {2 * c + 1}"
        largest, mean = re.fullmatch(r"largest weight (\S+), mean (\S+)", how).groups()
        np.testing.assert_allclose([float(largest), float(mean)], [heat["max"][r][c], heat["mean"][r][c]], rtol=5e-4)
    for kind in ("max", "mean"):
        page.evaluate(f"document.querySelector('input[value={kind}]').click()")
        pixels = page.evaluate(
            """[...document.querySelector('canvas[data-head="1"]').getContext("2d")
                 .getImageData(0, 0, 100, 100).data]"""
        )
        dark = 3 * 255 - np.reshape(pixels, (100, 100, 4))[..., :3].sum(2)
        weights = np.array(heat[kind])
        assert not dark[weights == 0].any()
        order = np.argsort(weights, axis=None)
        assert (np.diff(dark.reshape(-1)[order]) >= 0).all()  # more weight, darker


def test_why_scale_in_the_page(explained):
    found, page = explained("--why_scale")
    rows = page.evaluate(
        """[...document.querySelectorAll('table[data-table=why_scale] tbody tr')].map((row) =>
             [...row.querySelectorAll("th, td")].map((cell) => cell.innerText))"""
    )
    widths = found["why_scale"]["widths"]
    for row, width in zip(rows, widths, strict=True):
        ways = [width["unscaled"], width["scaled"]]
        right = [[shown(w["spread"], 2), shown(w["entropy_bits"], 2), shown(w["effective_keys"], 1)] for w in ways]
        assert row == [str(width["d"]), shown(width["root_d"], 2), *right[0], *right[1]]
    dots = page.evaluate(
        """[...document.querySelectorAll("svg.chart g.series[data-name='as q · k comes']")].map((line) =>
             [...line.querySelectorAll("circle")].map((dot) => [Number(dot.dataset.x), Number(dot.dataset.y)]))"""
    )
    for line, name in zip(dots, ("spread", "entropy_bits"), strict=True):
        assert line == [[width["d"], width["unscaled"][name]] for width in widths]


def test_a_label_cannot_become_markup(explained, folder):
    label = "</script><img src=http://127.0.0.1:9/x><b>"
    found, page = explained(*tensors(folder, "small"), f"--labels={label},b,c,d,e")
    assert found["lesson"]["keys"][0]["name"] == label
    assert page.errors == [] and page.requests == []
    assert label in page.text("table[data-grid=dot-0] th")
