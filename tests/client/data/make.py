#!/usr/bin/env python3
"""Writes the .npy and .npz files of this folder with NumPy.

Every [3, 4] array holds (i - 5) / 4 for i = 0 ... 11, which all float types hold exactly; integers hold i - 5, bools
i % 3 == 0.
"""
import io
import os
import zipfile

import numpy as np

os.chdir(os.path.dirname(os.path.abspath(__file__)))
i = np.arange(12).reshape(3, 4)
quarters = (i - 5) / 4
for descr in ("<f2", "<f4", "<f8", ">f2", ">f4", ">f8"):
    np.save(f"{'big' if descr[0] == '>' else 'little'}_{descr[1:]}.npy", quarters.astype(descr))
for descr in ("<i4", "<i8", ">i4", ">i8"):
    np.save(f"{'big' if descr[0] == '>' else 'little'}_{descr[1:]}.npy", (i - 5).astype(descr))
np.save("bool.npy", i % 3 == 0)
np.save("u1.npy", (i % 3 == 0).astype("u1"))
np.save("u1_other.npy", i.astype("u1"))
np.save("fortran_f4.npy", np.asfortranarray(quarters.astype("<f4")))
np.save("fortran_i4_rank3.npy", np.asfortranarray(np.arange(24, dtype="<i4").reshape(2, 3, 4)))
# bfloat16 is the upper half of a float32; ml_dtypes writes it as two opaque bytes.
np.save("bfloat16.npy", (quarters.astype("<f4").view("<u4") >> 16).astype("<u2").view("V2"))
np.save("empty.npy", np.zeros((0, 3), "<f4"))
np.save("scalar.npy", np.float64(2.5))
np.save("complex.npy", quarters.astype("<c8"))
np.save("structured.npy", np.zeros(2, [("a", "<f4")]))
for version in (2, 3):
    with open(f"version{version}.npy", "wb") as file:
        np.lib.format.write_array(file, quarters.astype("<f4"), version=(version, 0))

arrays = {"q": quarters.astype("<f4"), "Mask": i % 3 == 0, "empty": np.zeros((0, 3), "<f4")}
np.savez("stored.npz", **arrays)
np.savez_compressed("deflated.npz", **arrays)


class Pipe(io.RawIOBase):
    """Cannot seek: zipfile then writes sizes after the data."""

    def __init__(self, file):
        self.file = file

    def writable(self):
        return True

    def write(self, data):
        return self.file.write(data)


with open("piped.npz", "wb") as file, zipfile.ZipFile(Pipe(file), "w", zipfile.ZIP_DEFLATED) as archive:
    for name, array in arrays.items():
        buffer = io.BytesIO()
        np.save(buffer, array)
        archive.writestr(name + ".npy", buffer.getvalue())
zipfile.ZIP64_LIMIT = 1  # everything is "large" now
np.savez("zip64.npz", **arrays)
