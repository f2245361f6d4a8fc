#!/usr/bin/env python3
"""What a call through the Python package costs over a raw grpcio call that carries the same bytes.

    ATTND_BIN=build/release/bin python tests/bench/python_client.py      (with the package installed, see client/python)

The raw call sends a request that was serialised before and takes the reply's bytes as they come: whatever Python would
do, it cannot do less. Both are asked in turn on one connection each in one run, so that the machine's moods meet both;
of each turn's pair the difference counts. What is printed are medians: milliseconds and their ratio.
"""

import pathlib
import sys
import time

sys.path[:0] = [str(pathlib.Path(__file__).resolve().parents[1] / folder) for folder in ("integration", "conformance")]
sys.path.append(str(pathlib.Path(__file__).resolve().parents[2] / "build" / "stubs"))

import numpy as np

import attnd
import wire
from attnd_server import AttndServer

SHAPES = {(1, 1, 5, 64): 3000, (1, 8, 512, 64): 200, (1, 8, 2048, 64): 60}  # shape -> turns


def seconds_of(call):
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def measure(server, shape, turns):
    """Milliseconds of each turn: [turns, 2], raw and the package's."""
    draw = np.random.default_rng(0).standard_normal
    q, k, v = (draw(shape, np.float32) for _ in range(3))
    request = wire.request(q, k, v).SerializeToString()
    raw = server.channel().unary_unary("/attnd.v1.AttentionService/Attend")
    with attnd.connect(server.address) as client:
        calls = (lambda: raw(request, timeout=60), lambda: client.scaled_dot_product_attention(q, k, v))
        for call in calls * 5:
            call()
        taken = np.empty((turns, 2))
        for turn in range(turns):  # who is first changes: the second finds the caches warm
            for which in (turn % 2, 1 - turn % 2):
                taken[turn, which] = 1e3 * seconds_of(calls[which])
    return taken


def main():
    print(f"{'shape':>14} {'raw, ms':>9} {'package':>9} {'more, ms':>9} {'ratio':>6}")
    with AttndServer() as server:
        for shape, turns in SHAPES.items():
            taken = measure(server, shape, turns)
            (raw, package), more = np.median(taken, axis=0), np.median(taken[:, 1] - taken[:, 0])
            print(f"{','.join(map(str, shape)):>14} {raw:9.3f} {package:9.3f} {more:9.3f} {1 + more / raw:6.3f}")


if __name__ == "__main__":
    main()
