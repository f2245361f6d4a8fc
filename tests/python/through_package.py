"""The conformance tests' two calls, made by the package: a request's message into keywords, an answer's arrays back.

`conformance_tests` gives the tests of a conformance module with these calls in place of grpcio's, so that the package
is held to the same cases and tolerances by the same lines.
"""

import asyncio
import contextlib
import importlib.util
import pathlib
import sys
import types

import numpy as np

import attnd
import wire
from attnd.v1 import attention_pb2 as pb
from attnd_server import CALL_SECONDS_MAX

CONFORMANCE = pathlib.Path(wire.__file__).parent
ENUMS = {
    "layout": {number: name for name, number in wire.LAYOUTS.items()},
    "output_dtype": wire.DTYPE_NAMES,
    "mode": {pb.COMPUTE_MODE_TILED: "tiled", pb.COMPUTE_MODE_REFERENCE: "reference"},
    "style": {pb.ROTARY_STYLE_HALF: "half", pb.ROTARY_STYLE_INTERLEAVED: "interleaved"},
}


def array(tensor):
    dtype = wire.DTYPE_NAMES[tensor.dtype]
    bits = np.frombuffer(tensor.data, wire.STORAGE[dtype]).reshape(tensor.shape)
    if dtype == "bfloat16":
        import ml_dtypes

        return bits.view(ml_dtypes.bfloat16)
    return bits.view(bool) if dtype == "bool" else bits


def value(field, given):
    if isinstance(given, pb.Tensor):
        return array(given)
    if isinstance(given, pb.Rotary):
        return attnd.Rotary(**fields(given))
    if field.name in ENUMS:
        return ENUMS[field.name][given]
    return given if isinstance(given, (bool, int, float)) else list(given)


def fields(message):
    return {field.name: value(field, given) for field, given in message.ListFields()}


def keywords(message):
    given = {name: array(getattr(message, name)) for name in "qkvx" if message.HasField(name)}
    if message.HasField("projection"):
        given["projection"] = attnd.Projection(**fields(message.projection))
    return given | {"outputs": [wire.OUTPUT_NAMES[kind] for kind in message.outputs], **fields(message.options)}


def given_back(answer):
    named = {"output": answer.output, "weights": answer.weights, "lse": answer.lse}
    named |= {f"scores_{step}": scores for step, scores in answer.scores.items()}
    named |= {f"projected_{letter}": projected for letter, projected in answer.projected.items()}
    named = {name: tensor for name, tensor in named.items() if tensor is not None}
    values = {
        name: tensor.astype(np.float32) if tensor.dtype.name == "bfloat16" else tensor for name, tensor in named.items()
    }
    raw = {name: tensor.tobytes() for name, tensor in named.items()}
    statistics = types.SimpleNamespace(**vars(answer.statistics) | {"q_offset": list(answer.statistics.q_offset)})
    return wire.Answer(values, raw, statistics)


@contextlib.contextmanager
def as_problems_fail():
    try:
        yield
    except attnd.Error as error:
        raise wire.ProblemFailed(types.SimpleNamespace(code=error.code.value[0], message=str(error))) from error


class Calls:
    """wire.CALLS by the package, at the address that a test's stub calls."""

    def __init__(self):
        self.clients = {}

    def client(self, stub):
        address = stub.address
        if address not in self.clients:
            self.clients[address] = attnd.connect(address, timeout=CALL_SECONDS_MAX)
        return self.clients[address]

    def attend(self, stub, message):
        with as_problems_fail():
            return given_back(self.client(stub).attend(**keywords(message)))

    def stream(self, stub, message):
        with as_problems_fail():
            return given_back(self.client(stub).attend(**keywords(message), stream=True))

    def coroutine(self, stub, message):
        async def call():
            async with attnd.aio.connect(stub.address, timeout=CALL_SECONDS_MAX) as client:
                return await client.attend(**keywords(message))

        with as_problems_fail():
            return given_back(asyncio.run(call()))


def conformance_tests(*modules):
    """Name -> test, of those tests that take a call."""
    calls = Calls()
    ours = types.ModuleType("wire")
    vars(ours).update(vars(wire))
    ours.CALLS = {"package": calls.attend, "package stream": calls.stream, "package aio": calls.coroutine}
    found = {}
    for name in modules:
        spec = importlib.util.spec_from_file_location(f"package_{name}", CONFORMANCE / f"{name}.py")
        module = importlib.util.module_from_spec(spec)
        sys.modules["wire"] = ours
        try:
            spec.loader.exec_module(module)
        finally:
            sys.modules["wire"] = wire
        for test, function in vars(module).items():
            marks = getattr(function, "pytestmark", ())
            if any(mark.name == "parametrize" and mark.args[0].startswith("call") for mark in marks):
                found[f"{test}_of_{name.removeprefix('test_')}"] = function
    return found
