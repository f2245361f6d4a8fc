"""The page of attn bench in a real browser: nothing in the console, no request, charts and tables of the JSON's
numbers.

Whether a load was measured or attn says that it was itself too slow is the machine's affair; the page shows either.
"""

import json
import subprocess

import pytest

from attnd_server import BIN, CALL_SECONDS_MAX

NAMES = ["p50", "p90", "p99", "p99.9", "p99.99", "max", "mean"]
LOADS = {"closed": ["--concurrency=1:4:x2"], "open": ["--rate=40,80", "--arrivals=poisson"]}


@pytest.fixture(scope="module", params=LOADS)
def report(server, tmp_path_factory, request):
    """(which, the page's file, what was printed)"""
    path = tmp_path_factory.mktemp("bench") / "bench.html"
    words = ["bench", f"--server={server.address}", "--shape=1,1,5,64", "--duration_s=1", "--warm_up_s=0.2", "--json"]
    command = [BIN / "attn", *words, f"--html={path}", *LOADS[request.param]]
    ran = subprocess.run(command, capture_output=True, text=True, check=False, timeout=CALL_SECONDS_MAX)
    assert ran.returncode in (0, 1), ran.stderr
    return request.param, path, json.loads(ran.stdout)


@pytest.mark.parametrize("width", [390, 1280])
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_it_opens_clean_everywhere(report, browser, pictures, width, dark):
    which, path, printed = report
    page = browser.open(path, width=width, dark=dark)
    page.screenshot(pictures / f"bench-{which}-{width}-{'dark' if dark else 'light'}.png")
    assert page.evaluate("data") == printed
    assert page.errors == [] and page.requests == []
    assert page.overflow() == 0 and page.cut_charts() == []


def place(point):
    return point.get("rate", point.get("concurrency"))


def test_tables_hold_the_numbers(report, browser):
    _, path, printed = report
    latency, throughput = (
        browser.open(path).evaluate(
            """["Latency", "Throughput and errors"].map((title) =>
                 [...[...document.querySelectorAll("section")]
                   .find((one) => one.querySelector("h2").innerText === title)
                   .querySelectorAll("tbody tr")].map((row) => [...row.cells].map((cell) =>
                     cell.dataset.value === undefined ? null : Number(cell.dataset.value))))"""
        )
    )
    assert latency == [
        [place(point), point["requests_per_second"], *(point.get("latency_us", {}).get(name) for name in NAMES)]
        for point in printed["points"]
    ]
    fields = ["requests", "refused", "failed", "unsent", "tokens_per_second", "gflops_per_second", "bytes_per_second"]
    assert throughput == [
        [
            *(place(point), *(point[field] for field in fields)),
            *(point["client"]["lateness_us"]["p99"], point["client"]["cpu"], None, None),
        ]
        for point in printed["points"]
    ]


def test_charts_hold_the_numbers(report, browser):
    _, path, printed = report
    charts = browser.open(path).evaluate(
        """Object.fromEntries([...document.querySelectorAll("svg.chart")].map((chart) =>
             [chart.querySelector("title, .title").textContent,
              Object.fromEntries([...chart.querySelectorAll("g.series[data-name]")].map((line) =>
                [line.dataset.name, [...line.querySelectorAll("circle")].map((dot) =>
                  [Number(dot.dataset.x), Number(dot.dataset.y)])]))]))"""
    )
    points = printed["points"]
    measured = [point for point in points if "latency_us" in point]
    if len(measured) > 1:
        assert charts["Throughput"]["answered"] == [[place(point), point["requests_per_second"]] for point in points]
        for name in ("p50", "p90", "p99", "p99.9"):
            assert charts["Latency"][name] == [[place(point), point["latency_us"][name]] for point in measured]
    by_percentile = charts.get("Latency by percentile", {})
    assert len(by_percentile) == len(measured)
    for line, point in zip(by_percentile.values(), measured):
        assert [us for _, us in line] == [one["us"] for one in point["percentiles"]]
