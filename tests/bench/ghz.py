#!/usr/bin/env python3
"""attn bench beside ghz, another load tester: closed-loop throughput of one server, in pairs that alternate.

    go install github.com/bojand/ghz/cmd/ghz@v0.120.0
    tests/bench/ghz.py --ghz GHZ [--pairs 5] [--seconds 3] [--concurrency 4] [--threads 1]

The problem has few bytes and much to compute (float64 in reference mode), so that the server is what both wait for: two
testers that count truly agree on it. Starts one server on loopback and ends it. Printed are the calls a second that
each counted, and attn's as a multiple of ghz's.
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

from aftermath import random_request  # noqa: E402
from attnd_server import BIN, ROOT, AttndServer  # noqa: E402

HEADS, ROWS, WIDTH = 1, 256, 64


def run(words):
    return json.loads(subprocess.run(words, capture_output=True, text=True, check=True).stdout)


def attn_rate(server, seconds, concurrency):
    words = ["bench", "--json", f"--server={server.address}", f"--shape=1,{HEADS},{ROWS},{WIDTH}", "--mode=reference"]
    report = run([BIN / "attn", *words, f"--duration_s={seconds}", f"--concurrency={concurrency}"])
    return report["points"][0]["requests_per_second"]


def ghz_rate(ghz, message, server, seconds, concurrency):
    proto = ["--import-paths", ROOT / "proto", "--proto", ROOT / "proto" / "attnd" / "v1" / "attention.proto"]
    load = ["-z", f"{seconds}s", "-c", str(concurrency), "--connections", str(concurrency), "-B", message]
    call = ["--insecure", "--call", "attnd.v1.AttentionService.Attend", "-O", "json"]
    result = run([ghz, *proto, *call, *load, server.address])
    # What was in flight as the time ended is cancelled by ghz itself.
    return result["statusCodeDistribution"]["OK"] / (result["total"] / 1e9)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ghz", type=pathlib.Path, required=True)
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=3)
    parser.add_argument("--concurrency", type=int, default=4)
    parser.add_argument("--threads", type=int, default=1, help="of the server; the testers need a processor too")
    options = parser.parse_args()
    with tempfile.NamedTemporaryFile() as message, AttndServer(f"--threads={options.threads}") as server:
        message.write(random_request(HEADS, ROWS, WIDTH, reference=True).SerializeToString())
        message.flush()
        load = (server, options.seconds, options.concurrency)
        testers = {"attn": lambda: attn_rate(*load), "ghz": lambda: ghz_rate(options.ghz, message.name, *load)}
        ratios = []
        for pair in range(options.pairs):
            rates = {name: testers[name]() for name in sorted(testers, reverse=pair % 2 == 1)}
            ratios.append(rates["attn"] / rates["ghz"])
            print(f"attn {rates['attn']:.1f}, ghz {rates['ghz']:.1f} calls a second: {ratios[-1]:.3f}", flush=True)
        print(f"median of the ratios: {statistics.median(ratios):.3f}")


if __name__ == "__main__":
    main()
