"""attn store, and attn run with what the server has: the same bytes as with everything in the request."""

import json

import numpy as np
import pytest

from aftermath import good_call
from attnd_server import AttndServer
from test_command_line import attn
from weight_sets import safetensors


@pytest.fixture
def server():
    """Of its own: what is put stays."""
    with AttndServer() as running:
        yield running
        good_call(running)


@pytest.fixture
def files(tmp_path):
    """q (1, 4, 3, 16); k and v (1, 2, 9, 16), whole and as 7 + 2 rows; x and weights of 4/2 heads of 8."""
    rng = np.random.default_rng(61)

    def draw(*shape):
        return rng.standard_normal(shape).astype(np.float32)

    arrays = {"q": draw(1, 4, 3, 16), "k": draw(1, 2, 9, 16), "v": draw(1, 2, 9, 16), "x": draw(5, 12)}
    arrays |= {"w_q": draw(12, 32), "w_k": draw(12, 16), "w_v": draw(12, 16), "w_o": draw(32, 10)}
    for letter in "kv":
        arrays[f"{letter}7"], arrays[f"{letter}2"] = arrays[letter][:, :, :7], arrays[letter][:, :, 7:]
    for name, array in arrays.items():
        np.save(tmp_path / f"{name}.npy", array)
    of_many = {f"blk.0.{name}": arrays[name] for name in ("k7", "v7")}
    (tmp_path / "l.safetensors").write_bytes(safetensors(of_many))
    return tmp_path


def run(server, files, *flags, **more):
    out = files / "out.npy"
    attn(server, "run", f"--q={files / 'q.npy'}", f"--output={out}", *flags, **more)
    return np.load(out)


def test_tensors_that_grow(server, files):
    put = [f"chat.k={files / 'k7.npy'}", f"chat.v={files / 'l.safetensors'}::blk.0.v7"]
    attn(server, "store", "put", *put, "--append_axis=2", "--capacity=9")
    listed = json.loads(attn(server, "store", "list", "--json").stdout)
    assert [(one["name"], one["dtype"], one["shape"], one["capacity"]) for one in listed["tensors"]] == [
        ("chat.k", "float32", [1, 2, 7, 16], 9),
        ("chat.v", "float32", [1, 2, 7, 16], 9),
    ]
    assert listed["weight_sets"] == []
    stored = ["--k=stored:chat.k", "--v=stored:chat.v"]
    for rows in ("7", ""):
        whole = [f"--{letter}={files / f'{letter}{rows}.npy'}" for letter in "kv"]
        for way in ("--unary", "--stream"):
            same = run(server, files, *stored, "--causal", way)
            assert same.tobytes() == run(server, files, *whole, "--causal", way).tobytes()
        if rows:
            attn(server, "store", "append", *(f"chat.{letter}={files / f'{letter}2.npy'}" for letter in "kv"))
    shown = attn(server, "store", "get", "chat.k").stdout
    assert "chat.k" in shown and "[1,2,9,16]" in shown and "9, axis 2" in shown
    attn(server, "store", "delete", "chat.k", "chat.v")
    assert attn(server, "store", "list").stdout == "nothing is stored\n"
    gone = attn(server, "run", f"--q={files / 'q.npy'}", *stored, code=1)
    assert "chat.k" in gone.stderr


def test_a_weight_set(server, files):
    weights = [f"--{name}={files / f'{name}.npy'}" for name in ("w_q", "w_k", "w_v", "w_o")]
    heads = ["--q_heads=4", "--kv_heads=2"]
    for version in ("1", "2"):
        shown = attn(server, "store", "put_weights", "layer0", *weights, *heads).stdout
        assert shown.splitlines()[1].split()[:4] == ["layer0", version, "4/2", "[12,32]"]
    out = files / "o.npy"
    problem = ["run", f"--x={files / 'x.npy'}", f"--output={out}", "--causal"]
    attn(server, *problem, *weights, *heads)
    right = np.load(out)
    assert right.shape == (5, 10)
    for name in ("layer0", "layer0@1"):
        attn(server, *problem, f"--weight_set={name}")
        assert np.load(out).tobytes() == right.tobytes()
    listed = json.loads(attn(server, "store", "list", "--json").stdout)["weight_sets"]
    assert [(one["name"], one["version"], one["from_file"]) for one in listed] == [
        ("layer0", 1, False),
        ("layer0", 2, False),
    ]
    attn(server, "store", "delete", "layer0", "--weight_set", "--version=1")
    assert "layer0" in attn(server, *problem, "--weight_set=layer0@1", code=1).stderr
    attn(server, *problem, "--weight_set=layer0")


def test_short_arrays_are_made_whole_where_that_is_asked_for(server, files):
    np.save(files / "short.npy", np.zeros((9, 16), np.float32))
    attn(server, "store", "put", f"a={files / 'short.npy'}", "--full_rank")
    attn(server, "store", "put", f"b={files / 'short.npy'}")
    listed = json.loads(attn(server, "store", "list", "--json").stdout)["tensors"]
    assert [one["shape"] for one in listed] == [[1, 1, 9, 16], [9, 16]]


@pytest.mark.parametrize(
    "words, code, said",
    [
        (["put", "k"], 2, "expected NAME=FILE"),
        (["put", "k=/nowhere.npy"], 1, "/nowhere.npy"),
        (["put", "Bad Name={files}/k.npy"], 1, "name"),
        (["put", "k={files}/l.safetensors"], 2, "holds 2 arrays"),
        (["put", "k={files}/l.safetensors::none"], 1, "none"),
        (["append", "k={files}/k.npy"], 1, "k"),
        (["get", "k"], 1, "k"),
        (["delete", "k"], 1, "k"),
        (["delete", "k", "--weight_set"], 1, "k"),
        (["put_weights", "w"], 2, "--w_q is missing"),
    ],
)
def test_mistakes_are_said_in_one_line(server, files, words, code, said):
    ran = attn(server, "store", *(word.format(files=files) for word in words), code=code)
    assert said in ran.stderr and ran.stderr.count("\n") == 1


def test_stored_tensors_are_for_run(server, files):
    refused = attn(server, "explain", "--q=stored:q", "--k=stored:k", "--v=stored:v", code=2)
    assert "stored:NAME is for attn run" in refused.stderr
