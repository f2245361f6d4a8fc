#!/usr/bin/env python3
"""What the Open Inference Protocol costs beside the native call: the same problem by both, in turns, from one run.

    tests/bench/two_doors.py [--shape 1,8,2048,64] [--rounds 7] [--seconds 2]

Starts one server on loopback and ends it. Printed are the milliseconds that a call takes, one after the other, and
ModelInfer's as a multiple of Attend's.
"""

import argparse
import json
import pathlib
import statistics
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
import conftest  # noqa: F401, E402  (makes the stubs, and puts the helpers below on the path)

from attnd_server import BIN, AttndServer  # noqa: E402


def call_ms(server, shape, seconds, *more):
    words = ["bench", "--json", f"--server={server.address}", f"--shape={shape}", f"--duration_s={seconds}", *more]
    ran = subprocess.run([BIN / "attn", *words], capture_output=True, text=True, check=True)
    return 1000 / json.loads(ran.stdout)["points"][0]["requests_per_second"]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", default="1,8,2048,64")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=2)
    options = parser.parse_args()
    with AttndServer() as server:
        doors = {"native": [], "inference": ["--protocol=kserve"]}
        ratios = []
        for number in range(options.rounds):
            order = sorted(doors, reverse=number % 2 == 1)
            took = {door: call_ms(server, options.shape, options.seconds, *doors[door]) for door in order}
            ratios.append(took["inference"] / took["native"])
            print(f"native {took['native']:.3f} ms, inference {took['inference']:.3f} ms: {ratios[-1]:.3f}", flush=True)
        print(f"median of the ratios: {statistics.median(ratios):.3f}")


if __name__ == "__main__":
    main()
