#!/usr/bin/env python3
"""What TLS costs: whole calls with it and without, in pairs that alternate which is first.

    tests/bench/tls.py [--pairs 9] [--seconds 2] [--shape 1,8,2048,64 ...]

Starts two servers on loopback, one with mutual TLS, and ends them. Printed is the time of a call over TLS as a multiple
of that without, one call at a time on one connection: the median of the pairs, and the range. Client and server share
the machine, so the encryption of both sides counts.
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
from certificates import Authority  # noqa: E402


def p50_us(server, shape, seconds, trust):
    words = ["bench", "--json", f"--server={server.address}", f"--shape={shape}", f"--duration_s={seconds}", *trust]
    ended = subprocess.run([BIN / "attn", *words], capture_output=True, text=True, check=True)
    return json.loads(ended.stdout)["points"][0]["latency_us"]["p50"]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=9)
    parser.add_argument("--seconds", type=float, default=2)
    parser.add_argument("--shape", nargs="+", default=["1,1,5,64", "1,8,512,64", "1,8,2048,64"])
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        authority = Authority(folder / "authority")
        authority.issue(folder / "server", "server", "IP:127.0.0.1")
        authority.issue(folder / "client", "client")
        flags = (
            f"--tls_certificate={folder / 'server' / 'tls.crt'}",
            f"--tls_key={folder / 'server' / 'tls.key'}",
            f"--tls_client_ca={folder / 'client' / 'ca.crt'}",
        )
        trust = (
            f"--tls_ca={folder / 'client' / 'ca.crt'}",
            f"--tls_certificate={folder / 'client' / 'tls.crt'}",
            f"--tls_key={folder / 'client' / 'tls.key'}",
        )
        with AttndServer() as plain, AttndServer(*flags) as secure:
            ways = [(plain, ()), (secure, trust)]
            for shape in options.shape:
                pairs = []
                for n in range(options.pairs):
                    times = {way[0]: p50_us(way[0], shape, options.seconds, way[1]) for way in ways[:: (-1) ** n]}
                    pairs.append((times[plain], times[secure]))
                ratios = sorted(tls / bare for bare, tls in pairs)
                bare, tls = (statistics.median(column) for column in zip(*pairs))
                print(
                    f"{shape}: {bare / 1e3:.3f} ms, over TLS {tls / 1e3:.3f} ms: {statistics.median(ratios):.3f} times,"
                    f" from {ratios[0]:.3f} to {ratios[-1]:.3f}",
                    flush=True,
                )


if __name__ == "__main__":
    main()
