#!/usr/bin/env python3
"""A long mixed load on one server: no error, and neither memory, descriptors nor threads rise.

    tests/bench/soak.py [--seconds 1800]

The load is that of the tests of memory (integration/mixed_load.py): large and small calls and streams, weights, peers
that stop reading, sending or answering. The first quarter, at most five minutes, warms up. drift.py judges what is
sampled after it; and an idle server at the end has no more memory, descriptors and threads than an idle one after
warming up, within stated bounds. Exit code 0 when all of it holds.
"""

import argparse
import pathlib
import sys
import threading
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
import conftest  # noqa: F401, E402  (makes the stubs, and puts them and the helpers below on the path)

from aftermath import good_call, memory_reserved  # noqa: E402
from attnd_server import AttndServer, eventually  # noqa: E402
from drift import Drift  # noqa: E402
from mixed_load import KINDS, STALL_MS, Load  # noqa: E402

MEMORY_BYTES = 256 << 20
SAMPLE_SECONDS = 0.25
IDLE_SECONDS = 8  # more than the server keeps memory for the next problem
IDLE_LOOKS = 8  # the least of so many counts: the server calls itself now and then
# What a figure may rise by over the run, beside noise; and an idle server's over an idle server's.
SLACK = {"resident MiB": 4.0, "descriptors": 2.0, "threads": 2.0}
IDLE_SLACK = {"resident MiB": 8.0, "descriptors": 0.0, "threads": 2.0}


def figures(server):
    status = pathlib.Path(f"/proc/{server.pid}/status").read_text()
    return {
        "resident MiB": server.resident_bytes() / (1 << 20),
        "descriptors": server.descriptors(),
        "threads": int(status.split("Threads:")[1].split()[0]),
    }


def idle_figures(server):
    """Of a server that nobody asks anything, with no connection but ours."""
    server.close_channels()
    eventually("everything is given back", lambda: memory_reserved(server) == 0)
    server.close_channels()
    looks = []
    for _ in range(IDLE_LOOKS):
        time.sleep(IDLE_SECONDS / IDLE_LOOKS)
        looks.append(figures(server))
    return {name: min(look[name] for look in looks[IDLE_LOOKS // 2 :]) for name in SLACK}


def sampled(server, load, seconds):
    """Runs the load and gives the samples of each figure."""
    samples, over, start = {name: [] for name in SLACK}, threading.Event(), time.monotonic()

    def sample():
        while not over.wait(SAMPLE_SECONDS):
            for name, value in figures(server).items():
                samples[name].append((time.monotonic() - start, value))

    sampler = threading.Thread(target=sample)
    sampler.start()
    try:
        load.run(seconds)
    finally:
        over.set()
        sampler.join()
    return samples


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=1800)
    seconds = parser.parse_args().seconds
    warm_up = min(seconds / 4, 300)
    flags = (f"--memory_bytes_max={MEMORY_BYTES}", f"--send_stall_ms={STALL_MS}", f"--receive_stall_ms={STALL_MS}")
    wrong = []
    with AttndServer(*flags, "--message_bytes_max=67108864", "--log_level=warning") as server:
        load = Load(server)
        load.run(warm_up)
        before = idle_figures(server)
        # All connections come at once; what they bring is there after some seconds.
        samples = sampled(server, load, seconds - warm_up)
        after = idle_figures(server)
        good_call(server)
    for kind, error in load.failures:
        wrong.append(f"{kind}: {error!r}")
    for kind in KINDS:
        if not (load.answered + load.faults)[kind.__name__]:
            wrong.append(f"{kind.__name__} never happened")
    print(f"{seconds:.0f} s, of which {warm_up:.0f} s to warm up: {sum(load.answered.values())} answers,")
    print(f"{sum(load.refused.values())} refusals for lack of room, {sum(load.faults.values())} faults of peers")
    for name, values in samples.items():
        settled = [(second, value) for second, value in values if second >= 0.1 * values[-1][0]]
        drift = Drift(settled)
        low, high = min(value for _, value in settled), max(value for _, value in settled)
        print(
            f"{name}: {low:.0f} to {high:.0f}, {60 * drift.slope:+.3f} a minute, "
            f"known to {60 * drift.uncertainty:.3f}; idle {before[name]:.0f} before and {after[name]:.0f} after"
        )
        if drift.rises(SLACK[name]):
            wrong.append(f"{name} rises by {60 * drift.slope:.3f} a minute")
        if after[name] > before[name] + IDLE_SLACK[name]:
            wrong.append(f"{name} of an idle server: {before[name]:.1f} before, {after[name]:.1f} after")
    for line in wrong:
        print(f"WRONG: {line}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
