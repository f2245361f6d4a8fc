"""Clients in other languages, each run by its one command, get right values, the server's words and their deadlines."""

import json
import os
import re
import subprocess

import numpy as np
import pytest

import oracle
from attnd_server import AttndServer, ROOT, eventually

RUN_SECONDS_MAX = 540  # a hang bound; the first run fetches and builds
LESSON = {"weights": "0.5871 0.1859 0.2270", "output": "0.6151 0.2941 0.5616 0.5337"}
WORDS = "k: shape [1,1,3,2], expected d_k = 4 as in q"


def filled(salt, shape):
    """tests/interop/README.md says how the tensors of the stream are made."""
    index = np.arange(np.prod(shape))
    return ((389 * index + 101 * salt) % 9973 / 4986 - 1).astype("<f4").reshape(shape)


def status_of_long(server):
    """How the log says that the call with a deadline ended; a line comes after its answer."""
    log = [json.loads(line) for line in server.log().splitlines() if '"message":"Attend"' in line]
    found = [line["status"] for line in log if "Nq60000" in line["problem"]]
    assert len(found) <= 1, found
    return found and found[0]


def run(command, **options):
    ran = subprocess.run(command, capture_output=True, text=True, check=False, timeout=RUN_SECONDS_MAX, **options)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return ran.stdout


@pytest.mark.parametrize("client", ["python", "node", "go", "grpcurl"])
def test_a_foreign_client(client, tmp_path):
    with AttndServer("--reflection", "--log_format=json") as server:
        lines = run([ROOT / f"tests/interop/{client}/run.sh", server.address, tmp_path]).splitlines()
        ended = eventually("the long one is in the log", lambda: status_of_long(server))
    said = dict(line.split(" ", 1) for line in lines if not line.startswith("stream "))
    assert list(said) == ["weights", "output", "error", "deadline", "stream_error"], lines
    assert {name: said[name] for name in LESSON} == LESSON

    # Go and grpcurl write the codes' names in their own way.
    assert re.fullmatch(r"(INVALID_ARGUMENT|InvalidArgument) " + re.escape(WORDS), said["error"])
    assert said["stream_error"] == f"3 {WORDS}"
    assert re.match(r"(DEADLINE_EXCEEDED|DeadlineExceeded) .*deadline", said["deadline"], re.IGNORECASE)
    assert ended in ("DEADLINE_EXCEEDED", "CANCELLED")  # the caller's own clock may have been first

    q, k, v = filled(0, (2, 4, 600, 64)), filled(1, (2, 2, 600, 64)), filled(2, (2, 2, 600, 64))
    right = oracle.attention(q, k, v, scale=1, causal=True)
    got = {"output": np.fromfile(tmp_path / "output.f32", "<f4").reshape(right.output.shape)}
    got["lse"] = np.fromfile(tmp_path / "lse.f32", "<f4").reshape(right.lse.shape)
    oracle.assert_answer(got, right)
    blocks = [line.split(" in ")[1] for line in lines if line.startswith("stream ")]
    assert len(blocks) == 2 and all(int(count.split()[0]) > 1 for count in blocks)  # there was something to assemble


def test_grpcurl_as_the_readme_has_it():
    (command,) = re.findall(r"```sh\n(grpcurl .*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    path = f"{ROOT / 'build/go/bin'}:{os.environ['PATH']}"
    with AttndServer("--reflection") as server:
        run([ROOT / "tests/interop/grpcurl/run.sh", server.address], cwd=server.folder)
        answer = json.loads(run(["bash", "-c", command.replace("127.0.0.1:50051", server.address)], env={"PATH": path}))
    assert answer["output"] == {"dtype": "DATA_TYPE_FLOAT32", "shape": ["1"] * 4, "data": "AAAAQA=="}
