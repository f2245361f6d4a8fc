#!/usr/bin/env python3
"""Whole calls: attnd beside the Python service one would write otherwise, by `attn bench`, alternating in one run.

    tests/bench/service_bench.py [--bin build/release/bin] [--python build/peers/bin/python] [--threads 2]
        [--pairs 5] [--seconds 1] [--only TEXT] [--giant_keys 131072] [--json]

It starts attnd and python_service.py (whose header says what to install for --python) on loopback ports of their own,
and ends those two processes and no other. For each row `attn bench` asks one, then the other, one call at a time on one
connection, --pairs times; medians are printed: p50 of the whole call from the client's side, the ratio (above 1: attnd
answers faster), the time inside attention that each server states, and p50 of attnd's whole call less that time. The
Python service has no streams: beside attnd's stream rows stands its unary call. float16 rows convert in every call,
both ways.

The echo rows are attnd alone: tensor bytes through the server and back without attention (no row counts, so all answers
are 0), as GB a second of tensors, both ways together, over TCP and over a Unix socket.

The last rows answer a small problem again and again while one of --giant_keys tokens runs on another connection: p99
of the small calls and the time of the giant, each alone and in company. --giant_keys 0 leaves them out.
"""

import argparse
import json
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]

# B,H,N,d and the call.
ROWS = [
    ("1,1,5,64", "unary"),
    ("1,1,5,64", "stream"),
    ("8,8,128,64", "unary"),
    ("1,8,512,64", "unary"),
    ("1,8,2048,64", "unary"),
    ("1,8,4096,128", "unary"),
    ("1,8,4096,128", "stream"),
]
SMALL = "1,1,5,64"
ECHO = "1,8,8192,64"  # 48 MiB there, 16 MiB back
TIMEOUT_MS = 600_000
START_SECONDS_MAX = 120


class Service:
    """A server process on a port of the system's choice that writes it to --port_file, and on a Unix socket where its
    program takes one. Ended by its own id."""

    def __init__(self, name, command, threads, unix=False):
        self.name = name
        self._folder = tempfile.TemporaryDirectory(prefix="service-bench-")
        folder = pathlib.Path(self._folder.name)
        self._log, port_file = folder / "log", folder / "port"
        self.unix_address = f"unix:{folder / 'socket'}"
        listen = f"--listen=127.0.0.1:0,{self.unix_address}" if unix else "--listen=127.0.0.1:0"
        with open(self._log, "wb") as log:
            self.process = subprocess.Popen(
                [*command, listen, f"--port_file={port_file}", f"--threads={threads}"],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        end = time.monotonic() + START_SECONDS_MAX
        while not (port_file.exists() and port_file.read_text().endswith("\n")):
            if self.process.poll() is not None or time.monotonic() > end:
                self.end()
                sys.exit(f"service_bench: {name} did not start:\n{self.log}")
            time.sleep(0.02)
        self.address = f"127.0.0.1:{port_file.read_text().split()[0].rpartition(':')[2]}"

    @property
    def log(self):
        return self._log.read_text(errors="backslashreplace")

    def end(self):
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(30)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.end()
        self._folder.cleanup()


class Attn:
    """The client's command line, asking a service."""

    def __init__(self, path):
        self._path = path

    def start(self, address, command, *arguments):
        words = [str(self._path), command, "--json", f"--server={address}", f"--timeout_ms={TIMEOUT_MS}"]
        return subprocess.Popen([*words, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    @staticmethod
    def result(process):
        out, err = process.communicate()
        if process.returncode != 0:
            sys.exit(f"service_bench: {err.strip()}")
        return json.loads(out)

    def bench(self, address, shape, seconds, *arguments):
        words = [f"--shape={shape}", f"--duration_s={seconds}", *arguments]
        return self.result(self.start(address, "bench", *words))["points"][0]

    def info(self, service):
        return self.result(self.start(service.address, "info"))


def measure_row(attn, attnd, other, shape, call, dtype, options):
    converted = [f"--wire_dtype={dtype}"] if dtype != "float32" else []
    streamed = ["--stream"] if call == "stream" else []
    pairs = []
    for _ in range(options.pairs):
        ours = attn.bench(attnd.address, shape, options.seconds, *converted, *streamed)
        pairs.append((ours, attn.bench(other.address, shape, options.seconds, *converted)))

    def median(of):
        return statistics.median(of(ours, theirs) for ours, theirs in pairs)

    return {
        "row": shape,
        "call": call,
        "wire_dtype": dtype,
        "attnd_p50_ms": median(lambda ours, _: ours["latency_us"]["p50"]) / 1e3,
        "python_p50_ms": median(lambda _, theirs: theirs["latency_us"]["p50"]) / 1e3,
        "times_faster": median(lambda ours, theirs: theirs["latency_us"]["p50"] / ours["latency_us"]["p50"]),
        "attnd_compute_ms": median(lambda ours, _: ours["compute_us_p50"]) / 1e3,
        "python_compute_ms": median(lambda _, theirs: theirs["compute_us_p50"]) / 1e3,
        "attnd_overhead_ms": median(lambda ours, _: ours["latency_us"]["p50"] - ours["compute_us_p50"]) / 1e3,
    }


def measure_echo(attn, attnd, options):
    ways = [(name, call) for name in ("TCP", "Unix") for call in ("unary", "stream")]
    results = {way: [] for way in ways}
    for _ in range(options.pairs):
        for name, call in ways:
            address = attnd.unix_address if name == "Unix" else attnd.address
            streamed = ["--stream"] if call == "stream" else []
            results[name, call].append(attn.bench(address, ECHO, options.seconds, "--q_len=0", *streamed))
    for name, call in ways:
        yield {
            "row": "echo",
            "shape": ECHO,
            "socket": name,
            "call": call,
            "gb_per_second": statistics.median(r["bytes_per_second"] for r in results[name, call]) / 1e9,
            "p50_ms": statistics.median(r["latency_us"]["p50"] for r in results[name, call]) / 1e3,
        }


def giant_and_small(attn, service, options):
    keys = options.giant_keys
    giant = [f"--shape=1,1,{keys},64", "--duration_s=0.01", "--warm_up_calls=0"]
    small_alone = attn.bench(service.address, SMALL, options.seconds)
    giant_alone = attn.result(attn.start(service.address, "bench", *giant))["points"][0]
    idle = attn.info(service)["memory_bytes_used"]
    running = attn.start(service.address, "bench", *giant)
    try:
        # It runs when the server holds it: its tensors and more.
        while attn.info(service)["memory_bytes_used"] - idle < 3 * keys * 64 * 4 and running.poll() is None:
            time.sleep(0.01)
        seconds = max(0.1, min(options.seconds, giant_alone["latency_us"]["max"] / 1e6 / 2))
        small_beside = attn.bench(service.address, SMALL, seconds)
        ended_first = running.poll() is not None
        giant_beside = attn.result(running)["points"][0]
    finally:
        if running.poll() is None:
            running.kill()
    return {
        "row": "giant_and_small",
        "service": service.name,
        "giant_keys": keys,
        "small_p99_alone_ms": small_alone["latency_us"]["p99"] / 1e3,
        "small_p99_beside_ms": small_beside["latency_us"]["p99"] / 1e3,
        "small_calls_beside": small_beside["requests"],
        "giant_alone_ms": giant_alone["latency_us"]["max"] / 1e3,
        "giant_beside_ms": giant_beside["latency_us"]["max"] / 1e3,
        "giant_ended_first": ended_first,
    }


class Report:
    """One JSON object a line, or tables for people."""

    def __init__(self, as_json):
        self._json = as_json

    def text(self, line):
        if not self._json:
            print(line, flush=True)

    def row(self, row, line):
        print(json.dumps(row) if self._json else line, flush=True)

    def services(self, info, other):
        ours = f"attnd {info['version']} {info['instruction_set_used']}, {info['threads']} threads"
        self.row({"row": "services", "attnd": ours, "python": other}, f"{ours}\nPython service: {other}")

    def calls_head(self):
        self.text(f"\n{'':30} {'whole call, p50':>23} {'':>7} {'in attention':>23} {'attnd adds':>11}")
        self.text(
            f"{'B,H,N,d':14} {'call':6} {'wire':8} {'attnd ms':>11} {'Python ms':>11} {'times':>7}"
            f" {'attnd ms':>11} {'Python ms':>11} {'ms':>11}"
        )

    def call(self, r):
        line = f"{r['row']:14} {r['call']:6} {r['wire_dtype']:8} {r['attnd_p50_ms']:11.3f} {r['python_p50_ms']:11.3f}"
        line += f" {r['times_faster']:7.2f} {r['attnd_compute_ms']:11.3f} {r['python_compute_ms']:11.3f}"
        self.row(r, f"{line} {r['attnd_overhead_ms']:11.3f}")

    def echo_head(self):
        self.text(f"\n{ECHO} through the server without attention")
        self.text(f"{'socket':8} {'call':6} {'GB/s':>11} {'p50, ms':>11}")

    def echo(self, r):
        self.row(r, f"{r['socket']:8} {r['call']:6} {r['gb_per_second']:11.2f} {r['p50_ms']:11.3f}")

    def giant_head(self, keys):
        self.text(f"\n{SMALL} beside one of {keys} tokens on another connection")
        self.text(f"{'':8} {'small p99, ms':>23} {'':>8} {'giant, ms':>23}")
        self.text(f"{'':8} {'alone':>11} {'beside':>11} {'calls':>8} {'alone':>11} {'beside':>11}")

    def giant(self, r):
        line = f"{r['service']:8} {r['small_p99_alone_ms']:11.3f} {r['small_p99_beside_ms']:11.3f}"
        line += f" {r['small_calls_beside']:8} {r['giant_alone_ms']:11.1f} {r['giant_beside_ms']:11.1f}"
        self.row(r, line + (" (the giant ended first: p99 is of both)" if r["giant_ended_first"] else ""))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bin", type=pathlib.Path, default=ROOT / "build" / "release" / "bin", help="attnd and attn")
    peers = ROOT / "build" / "peers" / "bin" / "python"
    parser.add_argument("--python", type=pathlib.Path, default=peers, help="an interpreter with grpcio-tools and torch")
    parser.add_argument("--threads", type=int, default=2, help="of each service's computation")
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=1, help="of each measurement")
    parser.add_argument("--only", default="", help="rows whose shape or name has this in it")
    parser.add_argument("--giant_keys", type=int, default=131072, help="0 leaves these rows out")
    parser.add_argument("--json", action="store_true", help="a JSON object a line, first what the services are")
    options = parser.parse_args()
    attn, report = Attn(options.bin / "attn"), Report(options.json)
    script = pathlib.Path(__file__).with_name("python_service.py")
    for program in (options.bin / "attnd", options.bin / "attn", options.python):
        if not program.exists():
            parser.error(f"{program} is not there; build first, and see {script.name} for --python")
    with (
        Service("attnd", [str(options.bin / "attnd"), "--admin_listen="], options.threads, unix=True) as attnd,
        Service("Python", [str(options.python), str(script)], options.threads) as other,
    ):
        report.services(attn.info(attnd), other.log.splitlines()[0])
        chosen = [(shape, call) for shape, call in ROWS if options.only in shape]
        if chosen:
            report.calls_head()
        for dtype in ("float32", "float16"):
            for shape, call in chosen:
                report.call(measure_row(attn, attnd, other, shape, call, dtype, options))
        if options.only in "echo":
            report.echo_head()
            for row in measure_echo(attn, attnd, options):
                report.echo(row)
        if options.giant_keys > 0 and options.only in "giant_and_small":
            report.giant_head(options.giant_keys)
            for service in (attnd, other):
                report.giant(giant_and_small(attn, service, options))


if __name__ == "__main__":
    main()
