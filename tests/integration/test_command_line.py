"""attn against a real server, as a person uses it: files in, files out, exit codes, errors in one line."""

import json
import subprocess

import numpy as np
import pytest

import oracle
import wire
from aftermath import good_call
from attnd_server import BIN, CALL_SECONDS_MAX, ROOT

NPZ = ROOT / "tests" / "conformance" / "lesson_five_tokens.npz"


def attn(server, *arguments, code=0):
    command = [BIN / "attn", arguments[0], f"--server={server.address}", *map(str, arguments[1:])]
    ran = subprocess.run(command, capture_output=True, text=True, check=False, timeout=CALL_SECONDS_MAX)
    assert ran.returncode == code, ran.stdout + ran.stderr
    return ran


@pytest.fixture
def files(tmp_path):
    """q, k, v as .npy: (2, 4/2, 33, 65, 16)."""
    rng = np.random.default_rng(41)
    arrays = {
        "q": rng.standard_normal((2, 4, 33, 16)),
        "k": rng.standard_normal((2, 2, 65, 16)),
        "v": rng.standard_normal((2, 2, 65, 16)),
    }
    for name, array in arrays.items():
        np.save(tmp_path / f"{name}.npy", array.astype(np.float32))
    return tmp_path


def tensors(files):
    return [f"--{name}={files / f'{name}.npy'}" for name in "qkv"]


@pytest.mark.parametrize("way", ["--unary", "--stream"])
def test_run(server, files, way):
    attn(
        server,
        "run",
        *tensors(files),
        "--causal",
        way,
        f"--output={files / 'o.npy'}",
        f"--weights={files / 'w.npy'}",
        f"--lse={files / 'l.npy'}",
        "--check_rows=8",
        "--report",
    )
    right = oracle.attention(*(np.load(files / f"{name}.npy") for name in "qkv"), causal=True)
    answer = {
        name: np.load(files / f"{letter}.npy") for name, letter in (("output", "o"), ("weights", "w"), ("lse", "l"))
    }
    oracle.assert_answer(answer, right)


@pytest.mark.parametrize("way", ["--unary", "--stream"])
def test_run_with_pages(server, files, way):
    """The 65 keys of both sequences in pages of 8, backwards; the last page of each is not full."""
    table = np.arange(17, -1, -1).reshape(2, 9)
    np.save(files / "table.npy", table)
    for name in "kv":
        whole = np.load(files / f"{name}.npy")
        pages = np.full((18, 2, 8, 16), np.nan, np.float32)
        for b, j in np.ndindex(2, 65):
            pages[table[b, j // 8], :, j % 8] = whole[b, :, j]
        np.save(files / f"{name}_pages.npy", pages)
    attn(
        server,
        "run",
        f"--q={files / 'q.npy'}",
        *(f"--{name}={files / f'{name}_pages.npy'}" for name in "kv"),
        f"--page_table={files / 'table.npy'}",
        "--kv_len=65",
        way,
        f"--output={files / 'o.npy'}",
        f"--lse={files / 'l.npy'}",
        f"--weights={files / 'w.npy'}",
        "--check_rows=8",
    )
    right = oracle.attention(*(np.load(files / f"{name}.npy") for name in "qkv"))
    answer = {"output": np.load(files / "o.npy"), "lse": np.load(files / "l.npy")}
    oracle.assert_answer(answer, right)
    weights = np.load(files / "w.npy")
    oracle.assert_answer({"weights": weights[..., :65]}, right)
    assert weights.shape == (2, 4, 33, 72) and not weights[..., 65:].any()


@pytest.mark.parametrize("way", ["--unary", "--stream"])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_run_in_half_width(server, stub, files, dtype, way):
    """The file holds, in float32, the very numbers that the server answers to whoever sends 16 bits themselves."""
    arrays = [np.load(files / f"{name}.npy") for name in "qkv"]
    written = files / "o.npy"
    attn(server, "run", *tensors(files), f"--wire_dtype={dtype}", way, f"--output={written}", "--check_rows=8")
    output = np.load(written)
    assert output.dtype == np.float32
    oracle.assert_answer({"output": output}, oracle.attention(*(wire.rounded(a, dtype) for a in arrays)), dtype)
    reply = wire.attend(stub, wire.request(*arrays, dtype=dtype))
    assert len(reply.raw["output"]) == output.nbytes // 2
    assert output.tobytes() == reply["output"].astype(np.float32).tobytes()


def test_output_dtype_stands_beside_wire_dtype(server, files):
    given = ["--wire_dtype=bfloat16", "--output_dtype=float16", f"--output={files / 'o.npy'}"]
    attn(server, "run", *tensors(files), *given)
    right = oracle.attention(*(wire.rounded(np.load(files / f"{name}.npy"), "bfloat16") for name in "qkv"))
    output = np.load(files / "o.npy")
    assert output.dtype == np.float16
    oracle.assert_answer({"output": output}, right, "float16")


def test_run_from_x(server, tmp_path):
    attn(
        server,
        "run",
        f"--npz={NPZ}",
        "--wire_dtype=float32",
        f"--output={tmp_path / 'o.npy'}",
        f"--projected=q={tmp_path / 'pq.npy'}",
    )
    given = np.load(NPZ)
    for name, stated in (("o", "O"), ("pq", "Q")):
        np.testing.assert_allclose(
            np.load(tmp_path / f"{name}.npy").reshape(given[stated].shape), given[stated], atol=2e-6
        )


def test_explain_prints_the_lesson(server):
    shown = attn(server, "explain").stdout
    for digits in (
        "2.40",
        "0.10",
        "0.50",
        "1.20",
        "0.05",
        "0.25",
        "0.5871",
        "0.1859",
        "0.2270",
        "0.6151 0.2941 0.5616 0.5337",
        "0.3 0.3 0.5 0.2",
    ):
        assert digits in shown


def test_plan_and_info(server):
    planned = attn(server, "plan", "--shape=1,1,4096,128", "--json").stdout
    assert json.loads(planned)["score_multiply_adds_per_head"] in (2147483648, "2147483648")
    assert "message_bytes_max" in attn(server, "info").stdout


def test_bench(server):
    shown = attn(server, "bench", "--shape=1,1,5,64", "--duration_s=0.5", "--concurrency=2").stdout
    assert "p50" in shown and "p99" in shown
    words = ["--shape=1,1,5,64", "--duration_s=0.2", "--json"]
    # Tensors in and out: four of 5 rows of 64.
    for dtype, element in (("float32", 4), ("float16", 2)):
        ran = json.loads(attn(server, "bench", *words, f"--wire_dtype={dtype}").stdout)["points"][0]
        np.testing.assert_allclose(ran["bytes_per_second"] / ran["requests_per_second"], 4 * 5 * 64 * element)


@pytest.mark.parametrize(
    "arguments, code",
    [
        (["run", "--q=/nonexistent.npy", "--k=/nonexistent.npy", "--v=/nonexistent.npy"], 1),
        (["run"], 2),
        (["run", "--no_such_flag"], None),
        (["plan", "--shape=1,2"], 2),
    ],
)
def test_errors_are_one_line_that_says_what_to_do(server, arguments, code):
    command = [BIN / "attn", arguments[0], f"--server={server.address}", *arguments[1:]]
    ran = subprocess.run(command, capture_output=True, text=True, check=False, timeout=CALL_SECONDS_MAX)
    assert ran.returncode == code if code is not None else ran.returncode > 0
    assert 1 <= len(ran.stderr.strip().splitlines()) <= 2
    good_call(server)


def test_a_shape_that_the_server_refuses(server, files):
    np.save(files / "k.npy", np.zeros((2, 2, 65, 15), np.float32))
    refused = attn(server, "run", *tensors(files), code=1)
    assert "k: shape [2,2,65,15], expected d_k = 16 as in q" in refused.stderr
    good_call(server)


@pytest.mark.parametrize("command", ["run", "explain", "plan", "info", "health", "bench", "store"])
def test_help_has_an_example(command):
    shown = subprocess.run(
        [BIN / "attn", command, "--help"], capture_output=True, text=True, check=True, timeout=CALL_SECONDS_MAX
    ).stdout
    assert f"attn {command}" in shown and "Example" in shown
