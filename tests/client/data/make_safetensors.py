#!/usr/bin/env python3
"""Writes all.safetensors of this folder with the safetensors package, and the seeds of its fuzzer.

Every [3, 4] tensor holds (i - 5) / 4 for i = 0 ... 11; integers hold i - 5, bools i % 3 == 0. Needs the package, which
build/venv has (tests/venv.sh).
"""
import json
import pathlib
import struct

import numpy as np
import safetensors

here = pathlib.Path(__file__).resolve().parent
corpus = here.parents[1] / "fuzz" / "corpus" / "safetensors"
i = np.arange(12).reshape(3, 4)
quarters = (i - 5) / 4
tensors = {
    "f32": ("float32", quarters.astype("<f4")),
    "f16": ("float16", quarters.astype("<f2")),
    "bf16": ("bfloat16", (quarters.astype("<f4").view("<u4") >> 16).astype("<u2")),
    "f64": ("float64", quarters.astype("<f8")),
    "i64": ("int64", (i - 5).astype("<i8")),
    "i32": ("int32", (i - 5).astype("<i4")),
    "bool": ("bool", i % 3 == 0),
    "u8": ("uint8", (i % 3 == 0).astype("u1")),
    "u8_other": ("uint8", i.astype("u1")),
    "i16": ("int16", (i - 5).astype("<i2")),
    "empty": ("float32", np.zeros((0, 3), "<f4")),
    "scalar": ("float64", np.array(2.5)),
    "layers.0.Name with spaces": ("float32", np.ones((1, 2), "<f4")),
}
written = safetensors.serialize(
    {
        name: safetensors.TensorSpec(dtype=dtype, shape=list(a.shape), data_ptr=a.ctypes.data, data_len=a.nbytes)
        for name, (dtype, a) in tensors.items()
    },
    {"made": "by the safetensors package"},
)
(here / "all.safetensors").write_bytes(written)


def file(header, data=b""):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


def one(dtype="F32", shape=(2,), offsets=(0, 8), **more):
    return {"t": {"dtype": dtype, "shape": list(shape), "data_offsets": list(offsets), **more}}


corpus.mkdir(parents=True, exist_ok=True)
seeds = {
    "all": written,
    "none": file({}),
    "plain": file(one(), bytes(8)),
    "bool": file(one("BOOL", (4,), (0, 4)), bytes([0, 1, 1, 0])),
    "int32": file(one("I32", (1, 2)), bytes(8)),
    "unknown_dtype": file(one("F4", (16,)), bytes(8)),
    "overlap": file({**one(), "u": one(offsets=(4, 12))["t"]}, bytes(12)),
    "gap": file({**one(), "u": one(offsets=(12, 20))["t"]}, bytes(20)),
    "behind": file(one(), bytes(9)),
    "beyond": file(one(), bytes(7)),
    "backwards": file(one(offsets=(8, 0)), bytes(8)),
    "huge_shape": file(one(shape=(1 << 62, 1 << 62)), bytes(8)),
    "twice": file(b'{"t":{"dtype":"U8","shape":[],"data_offsets":[0,1]},"t":{"dtype":"U8","shape":[],'
                  b'"data_offsets":[0,1]}}', bytes(1)),
    "deep": file(b'{"__metadata__":' + b"[" * 900 + b"]" * 900 + b"}"),
    "long_header": struct.pack("<Q", 1 << 60) + b"{}",
    "negative": file(one(shape=(-2,)), bytes(8)),
    "fraction": file(one(shape=(2.0,)), bytes(8)),
}
for name, seed in seeds.items():
    (corpus / name).write_bytes(seed)
