"""Weight sets for tests: arrays, messages and files of them, and what a server that has them answers."""

import json

import numpy as np

import wire
from attnd.v1 import attention_pb2 as pb
from attnd.v1 import store_pb2, store_pb2_grpc
from attnd_server import CALL_SECONDS_MAX

D_MODEL, Q_HEADS, KV_HEADS, D_K, D_V, D_OUT = 48, 4, 2, 24, 16, 40
SHAPES = {
    "w_q": (D_MODEL, Q_HEADS * D_K),
    "w_k": (D_MODEL, KV_HEADS * D_K),
    "w_v": (D_MODEL, KV_HEADS * D_V),
    "w_o": (Q_HEADS * D_V, D_OUT),
    "b_q": (Q_HEADS * D_K,),
    "b_k": (KV_HEADS * D_K,),
    "b_v": (KV_HEADS * D_V,),
    "b_o": (D_OUT,),
}
SAFETENSORS_NAMES = {"float32": "F32", "float16": "F16", "bfloat16": "BF16", "float64": "F64", "int64": "I64"}
X = np.random.default_rng(70).standard_normal((2, 37, D_MODEL))


def weights(seed, roles=tuple(SHAPES)):
    rng = np.random.default_rng(seed)
    return {role: rng.standard_normal(SHAPES[role]) / 7 for role in roles}


def turned(arrays):
    """As [out, in]."""
    return {role: array.T if role.startswith("w_") else array for role, array in arrays.items()}


def projection(arrays, dtype="float32", transposed=False):
    return wire.projection(
        Q_HEADS, KV_HEADS, dtype=dtype, transposed=transposed, **(turned(arrays) if transposed else arrays)
    )


def inline(arrays, dtype="float32", **options):
    """The request that carries them."""
    return wire.request(x=X, projection=projection(arrays, dtype), outputs=("lse", "projected_q"), **options)


def named(name, version=0, **options):
    """The request that names them."""
    message = wire.request(x=X, projection=pb.Projection(), outputs=("lse", "projected_q"), **options)
    message.ClearField("projection")
    message.weight_set.CopyFrom(pb.WeightSetRef(name=name, version=version))
    return message


class Store:
    """The calls about weight sets, of one caller."""

    def __init__(self, server, token=None):
        self.attention = server.stub()
        self._stub = store_pb2_grpc.StoreServiceStub(server.channel())
        self._how = {"timeout": CALL_SECONDS_MAX, "metadata": [("authorization", f"Bearer {token}")] if token else []}

    def put(self, name, arrays=None, version=0, message=None, rotary=None, **how):
        request = store_pb2.PutWeightSetRequest(
            name=name, version=version, projection=message or projection(arrays, **how), rotary=rotary
        )
        return self._stub.PutWeightSet(request, **self._how).weight_set

    def get(self, name, version=0):
        request = store_pb2.GetWeightSetRequest(name=name, version=version)
        return self._stub.GetWeightSet(request, **self._how).weight_set

    def list(self):
        sets = self._stub.ListWeightSets(store_pb2.ListWeightSetsRequest(), **self._how).weight_sets
        return [(found.name, found.version) for found in sets]

    def delete(self, name, version=0):
        self._stub.DeleteWeightSet(store_pb2.DeleteWeightSetRequest(name=name, version=version), **self._how)

    def answer(self, name, version=0, **options):
        return wire.attend(self.attention, named(name, version, **options)).raw


def safetensors(arrays, dtype="float32", metadata=None, header=None):
    """A file's bytes; `header` may change its entries."""
    entries, data = {}, b""
    for name, array in arrays.items():
        bits = wire.to_bits(array, dtype).tobytes()
        entries[name] = {
            "dtype": SAFETENSORS_NAMES[dtype],
            "shape": list(array.shape),
            "data_offsets": [len(data), len(data) + len(bits)],
        }
        data += bits
    if metadata:
        entries["__metadata__"] = metadata
    if header:
        header(entries)
    text = json.dumps(entries).encode()
    return len(text).to_bytes(8, "little") + text + data


def manifest(name, version, files, tensors=None, **fields):
    tensors = tensors or {role: role for role in SHAPES}
    return json.dumps(
        {
            "name": name,
            "version": version,
            "files": files,
            "q_heads": Q_HEADS,
            "kv_heads": KV_HEADS,
            "tensors": tensors,
            **fields,
        }
    )
