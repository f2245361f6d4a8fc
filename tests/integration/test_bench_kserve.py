"""attn bench at servers of the Open Inference Protocol: what it sends is held to the protocol by a server of Python's
grpcio, and what that answers is what is counted."""

import concurrent.futures
import contextlib
import json
import subprocess

import grpc
import numpy as np
import pytest

from attnd_server import BIN, CALL_SECONDS_MAX
from inference import inference_pb2 as pb
from inference import inference_pb2_grpc

INPUTS = {"q": [1, 4, 3, 8], "k": [1, 2, 5, 8], "v": [1, 2, 5, 16]}
SHAPE = "--shape=1,4/2,3,5,8/16"
ANSWER = np.zeros((1, 4, 3, 16), np.float32)


class Model(inference_pb2_grpc.GRPCInferenceServiceServicer):
    """Answers zeros of the right shape, or what a test makes of it, and keeps every request."""

    def __init__(self):
        self.requests = []
        self.answer = lambda call: reply(raw=ANSWER.tobytes())

    def ModelInfer(self, request, context):
        self.requests.append(request)
        return self.answer(len(self.requests)) or context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "busy")


def reply(raw=None, values=()):
    answer = pb.ModelInferResponse(model_name="attention")
    answer.outputs.add(name="output", datatype="FP32", shape=ANSWER.shape).contents.fp32_contents.extend(values)
    if raw is not None:
        answer.raw_output_contents.append(raw)
    return answer


@pytest.fixture
def model():
    served = Model()
    server = grpc.server(concurrent.futures.ThreadPoolExecutor(2))
    inference_pb2_grpc.add_GRPCInferenceServiceServicer_to_server(served, server)
    served.address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    server.start()
    with contextlib.closing(contextlib.ExitStack()) as stack:
        stack.callback(lambda: server.stop(None).wait())
        yield served


def bench(model, *more, code=0):
    words = ["bench", f"--server={model.address}", "--protocol=kserve", SHAPE, "--duration_s=0.3", "--json"]
    ran = subprocess.run(
        [BIN / "attn", *words, *more], capture_output=True, text=True, check=False, timeout=CALL_SECONDS_MAX
    )
    assert ran.returncode == code, ran.stdout + ran.stderr
    return json.loads(ran.stdout)["points"][0] if ran.stdout else ran.stderr


@pytest.mark.parametrize("values", [False, True], ids=["raw", "by_value"])
def test_a_load(model, values):
    if values:
        model.answer = lambda call: reply(values=ANSWER.ravel())
    point = bench(model, "--concurrency=2", "--warm_up_calls=1")
    assert point["requests"] == len(model.requests) - 2 > 0
    assert (point["refused"], point["failed"]) == (0, 0)
    # Both ways, float32.
    moved = 4 * (sum(np.prod(shape) for shape in INPUTS.values()) + ANSWER.size)
    assert point["bytes_per_second"] / point["requests_per_second"] == pytest.approx(moved)
    # Nobody said what the server did meanwhile.
    assert point["split_us_mean"]["queue"] == point["split_us_mean"]["compute"] == 0


@pytest.mark.parametrize("dtype, name, size", [("float32", "FP32", 4), ("float16", "FP16", 2), ("bfloat16", "BF16", 2)])
def test_what_is_sent(model, dtype, name, size):
    model.answer = lambda call: reply(raw=bytes(ANSWER.size * size))
    bench(model, f"--dtype={dtype}", "--model=mine", "--causal", "--scale=0.5", "--kv_len=4", "--sinks=1,2,3,4")
    request = model.requests[0]
    assert request.model_name == "mine" and [output.name for output in request.outputs] == ["output"]
    raw = {tensor.name: (tensor, data) for tensor, data in zip(request.inputs, request.raw_input_contents, strict=True)}
    for key, shape in INPUTS.items():
        tensor, data = raw[key]
        assert (tensor.datatype, list(tensor.shape), len(data)) == (name, shape, np.prod(shape) * size)
    assert (raw["kv_len"][0].datatype, np.frombuffer(raw["kv_len"][1], "<i8").tolist()) == ("INT64", [4])
    assert (raw["sinks"][0].datatype, np.frombuffer(raw["sinks"][1], "<f4").tolist()) == ("FP32", [1, 2, 3, 4])
    assert set(raw) == {*INPUTS, "kv_len", "sinks"}
    assert {key: value.WhichOneof("parameter_choice") for key, value in request.parameters.items()} == {
        "causal": "bool_param",
        "scale": "double_param",
    }
    assert request.parameters["causal"].bool_param and request.parameters["scale"].double_param == 0.5


def test_attnd_itself_is_such_a_server(server):
    point = bench(server, "--causal", "--q_offset=2", "--sinks=1,2,3,4", "--layout=bnhd")
    assert point["requests"] > 0 and (point["refused"], point["failed"]) == (0, 0)


def test_refusals_and_wrong_answers_are_no_answers(model):
    model.answer = lambda call: reply(raw=ANSWER.tobytes()) if call % 2 else None
    point = bench(model, "--warm_up_calls=0")
    assert point["refused"] == len(model.requests) - point["requests"] > 0
    model.requests.clear()
    model.answer = lambda call: reply(raw=bytes(4))
    point = bench(model, code=1)
    assert point["requests"] == 0 and point["failed_by_status"] == {"INTERNAL": point["failed"]}


@pytest.mark.parametrize("flag", ["--stream", "--verify=3", "--wire_dtype=float16", "--rotary_style=half"])
def test_what_the_protocol_has_no_place_for(model, flag):
    assert flag.strip("-").partition("=")[0].partition("_")[0] in bench(model, flag, code=2)
    assert model.requests == []
