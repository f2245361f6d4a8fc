#!/usr/bin/env python3
"""How soon work stops: calls that are cancelled, or whose deadline passes, in the middle of every kind of compute.

    tests/bench/stopping.py [--calls 60] [--threads 2] [--only TEXT]

For each kind it asks --calls times on one connection: half are cancelled at a random moment, half have a deadline that
comes at one. The server's own log says how long after that no thread worked at the call any more, and how much compute
that gave back; medians and maxima are printed, of those calls that were being computed at their moment. It starts one
server on loopback and ends it.
"""

import argparse
import json
import pathlib
import random
import statistics
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
import conftest  # noqa: F401, E402  (makes the stubs, and puts them and the helpers below on the path)

import grpc  # noqa: E402
import numpy as np  # noqa: E402

import wire  # noqa: E402
from attnd_server import AttndServer  # noqa: E402

MESSAGE_BYTES = 1 << 30


def qkv(batch, q_heads, kv_heads, q_rows, kv_rows, width, **options):
    draw = np.random.default_rng(0).standard_normal
    q = draw((batch, q_heads, q_rows, width), dtype=np.float32)
    k, v = (draw((batch, kv_heads, kv_rows, width), dtype=np.float32) for _ in range(2))
    return wire.request(q, k, v, **options)


def projected(rows, width, heads, **options):
    draw = np.random.default_rng(0).standard_normal
    weights = {name: draw((width, width), dtype=np.float32) for name in ("w_q", "w_k", "w_v", "w_o")}
    projection = wire.projection(heads, heads, **weights)
    return wire.request(x=draw((1, rows, width), dtype=np.float32), projection=projection, **options)


KINDS = {
    "tiles": lambda: qkv(1, 8, 8, 8192, 8192, 64),
    "tiles, d 1024": lambda: qkv(1, 1, 1, 4096, 8192, 1024),
    "tiles, d 4096": lambda: qkv(1, 1, 1, 2048, 4096, 4096),
    "every option": lambda: qkv(
        1, 8, 8, 4096, 4096, 64, softcap=30.0, causal=True, window_left=3000, alibi_slopes=[0.1] * 8, sinks=[0.0] * 8
    ),
    "weights": lambda: qkv(1, 1, 1, 6144, 6144, 64, outputs=["weights"]),
    "projections": lambda: projected(1024, 4096, 32),
    "rotary": lambda: qkv(1, 32, 32, 4096, 2048, 64, rotary={"style": "half", "dim": 64}),
    "reference": lambda: qkv(1, 1, 1, 1024, 4096, 64, reference=True),
    "reference, 262144 keys": lambda: qkv(1, 1, 1, 16, 262144, 64, reference=True),
    "reference, projections": lambda: projected(64, 2048, 16, reference=True),
}


def log_after(server, before):
    """The lines after so many, once no more come; a call that its caller gave up too early is in no log."""
    lines = []
    while not lines or len(lines) < len(server.log().splitlines()) - before:
        lines = server.log().splitlines()[before:]
        time.sleep(0.5)
    return [json.loads(line) for line in lines]


def measure(server, request, calls):
    """Milliseconds of a whole call, and the log's records of calls that were stopped while they were computed."""
    stub, chance = server.stub(), random.Random(1)
    before = len(server.log().splitlines())
    for _ in range(2):  # the first makes kernels
        start = time.monotonic()
        stub.Attend(request, timeout=600)
        whole_ms = (time.monotonic() - start) * 1e3
    before += len(log_after(server, before))
    for call in range(calls):
        moment = chance.random() * whole_ms / 1e3
        answer = stub.Attend.future(request, timeout=600 if call % 2 else moment)
        if call % 2:
            time.sleep(moment)
            answer.cancel()
        try:
            answer.result()
        except (grpc.RpcError, grpc.FutureCancelledError):
            continue
    records = log_after(server, before)
    return whole_ms, [record for record in records if "stopped_in_ms" in record and record["slices"]]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--calls", type=int, default=60)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--only", default="", help="kinds whose name holds this text")
    options = parser.parse_args()
    flags = [f"--threads={options.threads}", f"--message_bytes_max={MESSAGE_BYTES}", "--log_format=json"]
    print(f"{'kind':<24}{'whole ms':>9}{'stopped':>9}{'stop ms p50':>13}{'max':>8}{'given back of CPU':>19}")
    with AttndServer(*flags) as server:
        for name, make in KINDS.items():
            if options.only not in name:
                continue
            whole, stopped = measure(server, make(), options.calls)
            stop_ms = sorted(record["stopped_in_ms"] for record in stopped)
            back = sum(r["given_back_ms"] for r in stopped)
            share = back / (back + sum(r["worked_ms"] for r in stopped)) if stopped else 0.0
            p50, most = (statistics.median(stop_ms), stop_ms[-1]) if stopped else (float("nan"),) * 2
            print(f"{name:<24}{whole:>9.0f}{len(stopped):>9}{p50:>13.2f}{most:>8.2f}{share:>18.0%}", flush=True)


if __name__ == "__main__":
    main()
