#!/usr/bin/env python3
"""What it costs that requests are observed: metrics, the table of what runs, and a line in the log for each.

    tests/bench/observing.py [--pairs 10] [--seconds 2] [--threads 2]

Observing costs the same whatever a request computes, so it is measured on the smallest calls, where its share is
largest, and on middling ones. Two ways: nanoseconds of CPU each, by build/release/bin/observing_bench, as shares of the
CPU time that the server spends on a call; and calls a second with the log on and off, in pairs that alternate which is
first, by PUT /loglevel on one running server. It starts one server on loopback and ends it.
"""

import argparse
import json
import pathlib
import statistics
import subprocess
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
import conftest  # noqa: F401, E402  (makes the stubs, and puts them and the helpers below on the path)

from attnd_server import BIN, AttndServer  # noqa: E402

SHAPES = ("1,1,5,64", "1,8,512,64")


def bench(server, shape, seconds):
    """Calls answered a second, and CPU seconds of the server for each of them."""
    before = server.cpu_seconds()
    words = ["bench", "--json", f"--server={server.address}", f"--shape={shape}", f"--duration_s={seconds}"]
    ended = subprocess.run([BIN / "attn", *words, "--concurrency=4"], capture_output=True, text=True, check=True)
    result = json.loads(ended.stdout)["points"][0]
    return result["requests_per_second"], (server.cpu_seconds() - before) / result["requests"]


def pair(server, shape, seconds, first):
    """Calls a second with the log on over those with it off, and the CPU seconds of a call without."""
    rates, cpu = {}, 0.0
    for level in (first, "off" if first == "info" else "info"):
        server.admin("/loglevel", "PUT", level)
        rates[level], spent = bench(server, shape, seconds)
        cpu = spent if level == "off" else cpu
    return rates["info"] / rates["off"], cpu


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=10)
    parser.add_argument("--seconds", type=float, default=2)
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    with tempfile.TemporaryFile() as lines:
        ended = subprocess.run([BIN / "observing_bench"], stdout=subprocess.PIPE, stderr=lines, check=True)
    costs = json.loads(ended.stdout)
    print(f"nanoseconds of CPU a request: {costs}")
    with AttndServer(f"--threads={options.threads}", admin=True) as server:
        for shape in SHAPES:
            bench(server, shape, 1)  # kernels, pages
            pairs = [pair(server, shape, options.seconds, ("info", "off")[n % 2]) for n in range(options.pairs)]
            ratios, cpu_ns = sorted(ratio for ratio, _ in pairs), 1e9 * statistics.median(cpu for _, cpu in pairs)
            counted = costs["row_ns"] + costs["metrics_ns"]
            print(
                f"{shape}: a call takes {cpu_ns / 1e3:.0f} us of CPU without the log; metrics and table are "
                f"{counted / cpu_ns:.2%} of it, the line {costs['log_ns'] / cpu_ns:.2%}; calls a second with the log "
                f"on over off: median {statistics.median(ratios):.3f}, from {ratios[0]:.3f} to {ratios[-1]:.3f}"
            )


if __name__ == "__main__":
    main()
