"""attn bench against a real server: on a terminal (tmux), with the server's metrics page, and for long."""

import http.server
import json
import re
import shlex
import signal
import subprocess
import threading

import pytest

from aftermath import good_call
from attnd_server import BIN, CALL_SECONDS_MAX, AttndServer, eventually
from peak_memory import peak_kib

SHAPE = "--shape=1,1,5,64"


def bench(server, *arguments, shape=SHAPE):
    command = [BIN / "attn", "bench", f"--server={server.address}", shape, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=CALL_SECONDS_MAX)


class Terminal:
    """A command in a tmux of its own, of so many columns."""

    def __init__(self, folder, columns, command):
        self._tmux = ["tmux", "-S", str(folder / "socket"), "-f", "/dev/null"]
        # What is left on the screen stays until the test has read it.
        script = f"{shlex.join(map(str, command))}; echo ended with $?; cat"
        size = ["-x", str(columns), "-y", "60"]
        subprocess.run([*self._tmux, "new-session", "-d", *size, "sh", "-c", script], check=True)

    def lines(self):
        shown = subprocess.run([*self._tmux, "capture-pane", "-p"], capture_output=True, text=True, check=True).stdout
        return shown.rstrip().splitlines()

    def close(self):
        subprocess.run([*self._tmux, "kill-server"], check=True)


@pytest.mark.parametrize("columns", [80, 200])
def test_on_a_terminal_one_line_is_drawn_over_and_the_tables_fit(server, tmp_path, columns):
    command = [BIN / "attn", "bench", f"--server={server.address}", SHAPE, "--rate=50,100", "--duration_s=1"]
    command += ["--warm_up_s=0.5"]
    seen = set()
    terminal = Terminal(tmp_path, columns, command)
    try:

        def ended():
            lines = terminal.lines()
            live = [line for line in lines if " of 1 s" in line or "warming up" in line]
            assert len(live) <= 1, lines
            seen.update(live)
            return any(line.startswith("ended with ") for line in lines)

        eventually("the load ends", ended)
        shown = terminal.lines()
    finally:
        terminal.close()
    text = "\n".join(shown)
    assert any("#" in line or "." in line for line in seen) and all(len(line) < columns for line in seen), seen
    assert " of 1 s" not in text  # what was drawn over is gone
    # Whole rows: a rate, a number and six times, or six dashes where attn was the bottleneck.
    rows = [line for line in shown if re.match(r"(50|100) ", line)]
    assert len(rows) == 6, text
    assert all(re.search(r"( [0-9.e+]+ (us|ms|s)){6}|( -){6}", re.sub(" +", " ", row)) for row in rows[:2]), text
    assert re.search(r"^150 answered, 0 refused, 0 failed$", text, re.MULTILINE), text
    good_call(server)


def test_ctrl_c_reports_what_was_measured_until_then(server, tmp_path):
    report = tmp_path / "report.json"
    words = ["bench", f"--server={server.address}", SHAPE, "--concurrency=1,2", "--duration_s=40", f"--json={report}"]
    process = subprocess.Popen([BIN / "attn", *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stderr.readline().startswith("callers 1  ")  # a tenth of the load has passed
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=CALL_SECONDS_MAX)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == 1
    assert "stopping; what was measured follows" in err and err.endswith("attn bench: interrupted\n")
    (point,) = json.loads(report.read_text())["points"]
    assert point["stopped"] and point["requests"] > 0 and point["seconds"] < 40
    assert not point["stable"] and point["unstable_because"] == ["it was stopped before its end"]
    assert re.search(r"^\d+ answered, 0 refused, 0 failed$", out, re.MULTILINE), out
    good_call(server)


def test_a_load_that_cannot_be_measured_leaves_those_before_it(server, tmp_path):
    pages = ["process_cpu_seconds_total 1\nprocess_resident_memory_bytes 2\n"] * 2  # before and after the first load

    class Page(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200 if pages else 500)
            self.end_headers()
            self.wfile.write(pages.pop().encode() if pages else b"")

        def log_message(self, *_):
            pass

    report = tmp_path / "report.json"
    with http.server.HTTPServer(("127.0.0.1", 0), Page) as page:
        threading.Thread(target=page.serve_forever, daemon=True).start()
        metrics = f"--metrics=http://127.0.0.1:{page.server_port}/metrics"
        ran = bench(server, "--concurrency=1,2", "--duration_s=0.3", metrics, f"--json={report}")
        page.shutdown()
    assert ran.returncode == 1 and "the metrics page does not say" in ran.stderr
    (point,) = json.loads(report.read_text())["points"]
    assert point["concurrency"] == 1 and point["requests"] > 0 and not point["stopped"]
    assert " answered, 0 refused, 0 failed" in ran.stdout
    good_call(server)


def test_without_a_terminal_progress_is_plain_lines(server):
    ran = bench(server, "--rate=50", "--duration_s=2", "--warm_up_s=0")
    lines = ran.stderr.splitlines()
    assert any(line.startswith("rate 50  ") for line in lines)
    assert "\033" not in ran.stderr and "\r" not in ran.stderr


def test_the_servers_own_figures_and_a_check_of_rows():
    with AttndServer(admin=True) as server:
        metrics = f"http://127.0.0.1:{server.admin_port}/metrics"
        ran = bench(server, "--duration_s=1", "--concurrency=2", f"--metrics={metrics}", "--verify=5", "--json")
        (point,) = json.loads(ran.stdout)["points"]
        assert 0 < point["server"]["cpu"] < 1000
        assert abs(point["server"]["resident_bytes"] / server.resident_bytes() - 1) < 0.5
        assert point["check"]["rows"] == 5 and point["check"]["passed"]
        assert point["requests"] > 0 and point["compute_us"]["max"] > 0
        good_call(server)


@pytest.mark.parametrize("call", [[], ["--stream"]])
def test_mixes_and_lengths(server, tmp_path, call):
    (tmp_path / "mix.json").write_text(
        json.dumps(
            [
                {"weight": 3, "shape": "2,4/2,9,16"},
                {"shape": "1,1,2000,64", "dtype": "float16", "options": {"causal": True}},
            ]
        )
    )
    for what in ([f"--mix={tmp_path / 'mix.json'}"], ["--mix=decode"], ["--lengths=zipf:1.2"]):
        words = [*what, "--duration_s=0.3", "--concurrency=3", "--verify=40", "--json", *call]
        ran = bench(server, *words, shape="--shape=1,2,64,16")
        report = json.loads(ran.stdout)
        (point,) = report["points"]
        assert point["failed"] == 0 and point["refused"] == 0 and point["requests"] > 0
        assert point["check"]["passed"] and point["check"]["rows"] >= 2
        assert len(report["workload"]) > 1
    good_call(server)


def test_a_report_compared_with_itself_has_no_change(server, tmp_path):
    report = tmp_path / "report.json"
    bench(server, "--duration_s=1", f"--json={report}")
    same = bench(server, "--compare", report, report, "--change_percent=50")
    assert same.returncode == 0, same.stderr
    assert "p99" in same.stdout and "worse" not in same.stdout


def test_memory_does_not_grow_with_the_run(server):
    peaks = []
    for seconds in (1, 6):
        # So many calls first, in both: what a few seconds' calls make an allocator keep is no growth.
        words = ["bench", f"--server={server.address}", SHAPE, "--concurrency=4", "--warm_up_calls=1000"]
        words += [f"--duration_s={seconds}"]
        peaks.append(peak_kib(BIN / "attn", *words, check=False) / 1024)  # it may say that it was itself too slow
    # Beside what rare latencies add: a histogram's buckets.
    assert peaks[1] - peaks[0] < 8, peaks
    good_call(server)
