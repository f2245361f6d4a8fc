"""The clients that people have, from their own packages: tritonclient and perf_analyzer, unchanged."""

import json
import pathlib
import re
import subprocess

import numpy as np
import pytest

import infer_wire
import wire
from attnd.v1 import store_pb2, store_pb2_grpc
from attnd_server import CALL_SECONDS_MAX, ROOT, AttndServer
from test_two_doors import draw, statistics

VENV = ROOT / "build" / "venv" / "bin"
SHAPE = (1, 4, 32, 16)


@pytest.fixture(scope="module", autouse=True)
def packages():
    subprocess.run([ROOT / "tests" / "venv.sh"], check=True)


def run(*words):
    ran = subprocess.run(words, capture_output=True, text=True, check=False, timeout=CALL_SECONDS_MAX)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return ran.stdout


def test_tritonclient(server, stub, tmp_path):
    tensors = {name: draw(*SHAPE).astype(np.float32) + shift for shift, name in enumerate("qkv")}
    message = wire.request(*tensors.values(), causal=True, scale=0.25, outputs=["lse"])
    store = store_pb2_grpc.StoreServiceStub(server.channel())
    for name in "kv":
        header = store_pb2.PutTensorHeader(name=f"triton.{name}", tensor=getattr(message, name))
        store.PutTensor(iter([store_pb2.PutTensorRequest(header=header)]), timeout=CALL_SECONDS_MAX)
    tensors.update(wire.attend(stub, message).values)
    np.savez(tmp_path / "answer.npz", **tensors)
    run(VENV / "python", pathlib.Path(__file__).with_name("triton_client.py"), server.address, tmp_path / "answer.npz")
    for name in "kv":
        store.DeleteTensor(store_pb2.DeleteTensorRequest(name=f"triton.{name}"), timeout=CALL_SECONDS_MAX)


@pytest.mark.parametrize("how", [[], ["--async"], ["--streaming"]], ids=["unary", "async", "streaming"])
def test_perf_analyzer(tmp_path, how):
    values = {name: {"content": draw(*SHAPE).ravel().tolist(), "shape": SHAPE} for name in "qkv"}
    (tmp_path / "data.json").write_text(json.dumps({"data": [values]}))
    with AttndServer() as server:
        load = ["--concurrency-range", "2", "--request-count", "40", "--input-data", tmp_path / "data.json"]
        said = run(
            VENV / "perf_analyzer", "-m", "attention", "-i", "grpc", "-u", server.address,
            *(word for name in "qkv" for word in ("--shape", f"{name}:{','.join(map(str, SHAPE))}")),
            "--request-parameter", "causal:true:bool", *load, *how,
        )  # fmt: skip
        model = statistics(infer_wire.stub_of(server))
    client, server_said = said.split("Client:")[1].split("Server:")
    assert "Request count: 40" in client
    # What it reads of the statistics; its first reading comes when it comes, after some of the requests.
    counts = {key: int(value) for key, value in re.findall(r"(\w+) (?:request )?count: (\d+)", server_said)}
    assert 0 < counts["Inference"] <= 40 and set(counts.values()) == {counts["Inference"]}
    parts = model.inference_stats
    assert model.inference_count == parts.success.count >= 40 and parts.fail.count == 0
    spent = parts.queue.ns + parts.compute_input.ns + parts.compute_infer.ns + parts.compute_output.ns
    assert spent == parts.success.ns


def test_the_readmes_example(server, tmp_path):
    text = (ROOT / "README.md").read_text()
    (program,) = [block for block in re.findall(r"```python\n(.*?)```", text, re.DOTALL) if "tritonclient" in block]
    (tmp_path / "call.py").write_text(program.replace("127.0.0.1:50051", server.address))
    (promised,) = re.findall(r"#\s+(\(.*\))", program)
    assert run(VENV / "python", tmp_path / "call.py").strip() == promised
