#!/usr/bin/env python3
"""attn bench beside perf_analyzer, another load tester: closed-loop throughput of one server, in pairs that alternate.

    tests/venv.sh
    tests/bench/perf_analyzer.py [--pairs 5] [--seconds 3] [--concurrency 4] [--threads 1]

Both send the same problem by the Open Inference Protocol. It has few bytes and much to compute (float64 in reference
mode), so that the server is what both wait for: two testers that count truly agree on it. Starts one server on loopback
and ends it. Printed are the calls a second that each counted, and attn's as a multiple of perf_analyzer's.
"""

import argparse
import json
import pathlib
import re
import statistics
import subprocess
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
import conftest  # noqa: F401, E402  (makes the stubs, and puts the helpers below on the path)

import numpy as np  # noqa: E402

from attnd_server import BIN, ROOT, AttndServer  # noqa: E402

SHAPE = (1, 1, 256, 64)


def run(words):
    return subprocess.run(words, capture_output=True, text=True, check=True).stdout


def attn_rate(server, seconds, concurrency):
    shape = ",".join(map(str, SHAPE))
    words = ["bench", "--json", f"--server={server.address}", f"--shape={shape}", "--mode=reference"]
    load = ["--protocol=kserve", f"--duration_s={seconds}", f"--concurrency={concurrency}"]
    return json.loads(run([BIN / "attn", *words, *load]))["points"][0]["requests_per_second"]


def perf_analyzer_rate(data, server, seconds, concurrency):
    shapes = [word for name in "qkv" for word in ("--shape", f"{name}:{','.join(map(str, SHAPE))}")]
    call = ["-m", "attention", "-i", "grpc", "-u", server.address, "--request-parameter", "mode:reference:string"]
    # One window of the time asked for: any two of three are stable enough.
    load = ["--concurrency-range", str(concurrency), "--measurement-interval", str(int(seconds * 1000)), "-s", "999"]
    said = run([ROOT / "build/venv/bin/perf_analyzer", *call, *shapes, *load, "--input-data", data])
    return float(re.search(r"Throughput: ([\d.]+) infer/sec", said)[1])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=3)
    parser.add_argument("--concurrency", type=int, default=4)
    parser.add_argument("--threads", type=int, default=1, help="of the server; the testers need a processor too")
    options = parser.parse_args()
    threads = f"--threads={options.threads}"
    with tempfile.NamedTemporaryFile("w", suffix=".json") as data, AttndServer(threads) as server:
        values = np.random.default_rng(0).standard_normal(SHAPE).ravel().tolist()
        json.dump({"data": [{name: {"content": values, "shape": SHAPE} for name in "qkv"}]}, data)
        data.flush()
        load = (server, options.seconds, options.concurrency)
        testers = {"attn": lambda: attn_rate(*load), "perf_analyzer": lambda: perf_analyzer_rate(data.name, *load)}
        ratios = []
        for pair in range(options.pairs):
            rates = {name: testers[name]() for name in sorted(testers, reverse=pair % 2 == 1)}
            ratios.append(rates["attn"] / rates["perf_analyzer"])
            text = ", ".join(f"{name} {rate:.1f}" for name, rate in sorted(rates.items()))
            print(f"{text} calls a second: {ratios[-1]:.3f}", flush=True)
        print(f"median of the ratios: {statistics.median(ratios):.3f}")


if __name__ == "__main__":
    main()
