"""Files that the real safetensors package writes are read exactly: with one key the output is its value, bit by bit."""

import pathlib
import subprocess

import numpy as np
import pytest

from attnd_server import ROOT
from test_command_line import attn

BITS = {"float32": np.float32, "float16": np.float16, "float64": np.float64, "bfloat16": np.uint16}


@pytest.fixture(scope="session")
def package():
    """Writes arrays to a file with the package; types: of arrays whose type NumPy does not have."""
    subprocess.run([ROOT / "tests" / "venv.sh"], check=True)

    def save(path, arrays, **types):
        np.savez(path.with_suffix(".npz"), **arrays)
        writer = [ROOT / "build" / "venv" / "bin" / "python", pathlib.Path(__file__).with_name("save_safetensors.py")]
        named = [f"{name}={dtype}" for name, dtype in types.items()]
        subprocess.run([*writer, path.with_suffix(".npz"), path, *named], check=True)

    return save


def any_values(dtype):
    """Every float16 or bfloat16 that is a normal number or zero, or as many of the wider types, as [B, H, 1, d]."""
    if dtype in ("float16", "bfloat16"):
        bits = np.arange(1 << 16, dtype=np.uint16)
        exponent = bits >> 10 & 0x1F if dtype == "float16" else bits >> 7 & 0xFF
        kept = bits[(exponent != exponent.max()) & ((exponent != 0) | (bits == 0))]
        values = kept.view(BITS[dtype])
    else:
        rng = np.random.default_rng(71)
        values = (rng.standard_normal(1 << 15) * 10.0 ** rng.integers(-30, 30, 1 << 15)).astype(dtype)
    return values[: values.size // 64 * 64].reshape(1, -1, 1, 64)


@pytest.mark.parametrize("dtype", BITS)
def test_floats_come_through_bit_by_bit(server, package, tmp_path, dtype):
    v = any_values(dtype)
    heads = v.shape[1]
    zeros = np.zeros((1, heads, 1, 4), BITS[dtype])
    path = tmp_path / "layer.safetensors"
    arrays = {"blocks.3.Q": zeros, "blocks.3.K": zeros, "blocks.3.V": v, "other": np.arange(5, dtype=np.int16)}
    package(path, arrays, **({f"blocks.3.{letter}": dtype for letter in "QKV"} if dtype == "bfloat16" else {}))
    names = [f"--names={letter}=blocks.3.{letter.upper()}" for letter in "qkv"]
    mode = ["--mode=reference"] if dtype == "float64" else []
    attn(server, "run", f"--safetensors={path}", *names, *mode, f"--output={tmp_path / 'o.npy'}")
    output = np.load(tmp_path / "o.npy")
    assert output.shape == v.shape and output.tobytes() == v.tobytes()


@pytest.mark.parametrize("of_mask", [np.bool_, np.uint8])
@pytest.mark.parametrize("of_table", [np.int32, np.int64])
def test_masks_and_integers(server, package, tmp_path, of_mask, of_table):
    """The answer is that of the same arrays as .npy files."""
    rng = np.random.default_rng(72)
    arrays = {
        "q": rng.standard_normal((2, 2, 5, 8)).astype(np.float32),
        "k": rng.standard_normal((6, 2, 4, 8)).astype(np.float32),
        "v": rng.standard_normal((6, 2, 4, 8)).astype(np.float32),
        "page_table": rng.permutation(6).reshape(2, 3).astype(of_table),
        "mask": (rng.random((5, 12)) < 0.7).astype(of_mask),
    }
    path = tmp_path / "all.safetensors"
    package(path, arrays)
    for name, array in arrays.items():
        np.save(tmp_path / f"{name}.npy", array)
    attn(server, "run", f"--safetensors={path}", f"--output={tmp_path / 'a.npy'}")
    files = [f"--{name}={tmp_path / f'{name}.npy'}" for name in arrays]
    attn(server, "run", *files, f"--output={tmp_path / 'b.npy'}")
    assert np.load(tmp_path / "a.npy").tobytes() == np.load(tmp_path / "b.npy").tobytes()


def test_empty_tensors_and_names_that_are_not_there(server, package, tmp_path):
    path = tmp_path / "empty.safetensors"
    package(path, {"q": np.zeros((1, 1, 0, 4), np.float32), "k": np.ones((1, 1, 3, 4), np.float32)})
    attn(server, "run", f"--safetensors={path}", "--names=v=k", f"--output={tmp_path / 'o.npy'}")
    assert np.load(tmp_path / "o.npy").shape == (1, 1, 0, 4)
    assert "has no tensor 'w'" in attn(server, "run", f"--safetensors={path}", "--names=v=w", code=1).stderr
    assert "--v is missing" in attn(server, "run", f"--safetensors={path}", code=2).stderr
    assert "expected ROLE=NAME" in attn(server, "run", f"--safetensors={path}", "--names=z=k", code=2).stderr
    assert "needs --npz or --safetensors" in attn(server, "run", "--names=v=k", code=2).stderr
    assert "exclude each other" in attn(server, "run", f"--safetensors={path}", f"--npz={path}", code=2).stderr
