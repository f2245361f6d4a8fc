#!/usr/bin/env python3
"""How many requests a second `attn bench` drives at a server that computes nothing, and how late it is itself.

    tests/bench/load_bench.py [--bin build/release/bin] [--rate 10000] [--runs 3] [--seconds 5]

null_server answers (1,1,5,64) with bytes that are always the same, on the same machine, so that both share its CPUs.
For the rate and for half of it, printed is what was answered, p99 of attn's own lateness and of the latency, and how
busy attn was; best of --runs, since whatever else runs can only make it later.
"""

import argparse
import json
import pathlib
import subprocess
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bin", type=pathlib.Path, default=ROOT / "build" / "release" / "bin")
    parser.add_argument("--rate", type=float, default=10000)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=5)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        port_file = pathlib.Path(folder) / "port"
        server = subprocess.Popen([options.bin / "null_server", port_file], stdin=subprocess.PIPE)
        try:
            while not (port_file.exists() and port_file.read_text().endswith("\n")):
                time.sleep(0.02)
            address = port_file.read_text().strip()
            for rate in (options.rate / 2, options.rate):
                words = ["bench", "--json", f"--server={address}", "--shape=1,1,5,64", f"--rate={rate}"]
                points = []
                for _ in range(options.runs):
                    command = [options.bin / "attn", *words, f"--duration_s={options.seconds}"]
                    ran = subprocess.run(command, capture_output=True, text=True, check=False)
                    points += json.loads(ran.stdout)["points"]
                best = min(points, key=lambda point: point["client"]["lateness_us"]["p99"])
                late, latency = best["client"]["lateness_us"], best.get("latency_us", {})
                print(
                    f"rate {rate:g}: {best['requests_per_second']:.0f} answered a second, sent late p50"
                    f" {late['p50'] / 1e3:.3f} ms, p99 {late['p99'] / 1e3:.3f} ms, latency p99"
                    f" {latency.get('p99', float('nan')) / 1e3:.3f} ms, attn {best['client']['cpu']:.2f} CPUs,"
                    f" its busiest thread {best['client']['busiest_thread'] * 100:.0f} %",
                    flush=True,
                )
        finally:
            server.stdin.close()
            server.wait()


if __name__ == "__main__":
    main()
