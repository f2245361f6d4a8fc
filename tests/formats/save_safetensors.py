"""Writes a safetensors file with the package of that name, from an .npz of arrays; run by build/venv's Python.

    save_safetensors.py IN.npz OUT.safetensors [NAME=DTYPE ...]

DTYPE is the package's name of the type where NumPy has none: bfloat16, from the bits as uint16.
"""
import sys

import numpy as np
import safetensors

source, target, *types = sys.argv[1:]
types = dict(text.split("=") for text in types)
with np.load(source) as npz:
    arrays = {name: np.ascontiguousarray(npz[name]) for name in npz.files}
specs = {
    name: safetensors.TensorSpec(
        dtype=types.get(name, str(a.dtype)), shape=list(a.shape), data_ptr=a.ctypes.data, data_len=a.nbytes
    )
    for name, a in arrays.items()
}
safetensors.serialize_file(specs, target, {"format": "np"})
