"""Weight sets as files: what was put survives a restart and a kill at any step; manifests are followed."""

import errno
import json
import os
import pathlib
import shutil
import signal
import subprocess

import grpc
import numpy as np
import pytest

import wire
from attnd.v1 import attention_pb2 as pb
from attnd_server import AttndServer, eventually
from weight_sets import Store, inline, manifest, safetensors, turned, weights

ROTARY = pb.Rotary(style=pb.ROTARY_STYLE_INTERLEAVED, rotary_dim=16, rope_base=12345.678)
SOURCE = pathlib.Path(__file__).with_name("store_faults.c")


@pytest.fixture(scope="module")
def faults(tmp_path_factory):
    library = tmp_path_factory.mktemp("library") / "store_faults.so"
    subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-o", library, SOURCE, "-ldl"], check=True)
    return library


def files(folder):
    return sorted(path.name for path in (folder / "put").iterdir())


def right(store, arrays, dtype="float32", **options):
    return wire.attend(store.attention, inline(arrays, dtype, **options)).raw


def failed(call):
    with pytest.raises(grpc.RpcError) as error:
        call()
    return error.value.code(), error.value.details()


def place(path, content):
    """As an operator should: whole, under its name, in one step."""
    temporary = path.with_name(path.name + ".part")
    temporary.write_bytes(content if isinstance(content, bytes) else content.encode())
    os.replace(temporary, path)


# What was put.


def test_what_was_put_survives_a_restart_and_what_was_deleted_does_not(tmp_path):
    arrays = weights(1)
    with AttndServer(f"--weights_dir={tmp_path}") as server:
        store = Store(server)
        kept = store.put("kept", arrays, dtype="bfloat16", transposed=True, rotary=ROTARY)
        store.put("gone", arrays)
        store.put("kept", weights(2), version=9)
        store.delete("gone")
        answer = store.answer("kept", 1)
    assert files(tmp_path) == ["1.safetensors", "3.safetensors"]
    for _ in range(2):
        with AttndServer(f"--weights_dir={tmp_path}") as server:
            store = Store(server)
            assert store.list() == [("kept", 1), ("kept", 9)]
            assert store.get("kept", 1) == kept and kept.rotary == ROTARY
            assert store.answer("kept", 1) == answer
            assert store.answer("kept") == right(store, weights(2))
    with AttndServer(f"--weights_dir={tmp_path}") as server:
        store = Store(server)
        assert store.put("new", arrays).version == 1
        store.delete("kept")
        store.delete("new")
        assert files(tmp_path) == []


def test_without_a_folder_sets_live_in_memory_only():
    with AttndServer() as server:
        Store(server).put("here", weights(3))
    with AttndServer() as server:
        assert Store(server).list() == []


def test_a_damaged_put_file_is_refused_and_stays(tmp_path):
    with AttndServer(f"--weights_dir={tmp_path}") as server:
        store = Store(server)
        for name in ("a", "b", "c"):
            store.put(name, weights(4))
    (tmp_path / "put/1.safetensors").write_bytes((tmp_path / "put/1.safetensors").read_bytes()[:-1])
    (tmp_path / "put/2.safetensors").write_bytes(safetensors(weights(4)))
    (tmp_path / "put/4.safetensors.tmp").write_bytes(b"")
    (tmp_path / "put/5.tmp").write_bytes(b"half of")
    (tmp_path / "put/note").write_bytes(b"not ours")
    with AttndServer(f"--weights_dir={tmp_path}", admin=True) as server:
        store = Store(server)
        assert store.list() == [("c", 1)]
        assert "put/1.safetensors" in server.log() and "beyond the end of the file" in server.log()
        assert "put/2.safetensors" in server.log() and "metadata: without" in server.log()
        page = server.admin("/metrics")[1]
        assert 'attnd_weight_set_loads_total{result="failed"} 2' in page
        assert 'attnd_weight_set_loads_total{result="ok"} 1' in page
        assert store.put("a", weights(4)).version == 1
        assert files(tmp_path) == ["1.safetensors", "2.safetensors", "3.safetensors", "4.safetensors", "note"]


NEW = weights(6, ("w_q", "w_k", "w_v"))
PUT_STEPS = ["open"] + ["write", "half"] * 4 + ["fsync", "rename", "fsync"]  # of a header and three tensors


@pytest.fixture(scope="module")
def before(tmp_path_factory):
    """A folder that has one set already."""
    folder = tmp_path_factory.mktemp("before")
    with AttndServer(f"--weights_dir={folder}") as server:
        Store(server).put("before", weights(5))
    return folder


class Faulty:
    """A server with store_faults.c under it, on a copy of a folder."""

    def __init__(self, library, before, folder, step, error=None):
        folder.mkdir()
        self.folder = folder / "weights"
        self._steps = folder / "steps"
        shutil.copytree(before, self.folder)
        self._steps.write_bytes(b"")

        def preload():
            os.environ["LD_PRELOAD"] = str(library)
            os.environ["ATTND_TEST_FOLDER"] = str(self.folder / "put")
            os.environ["ATTND_TEST_STEPS"] = str(self._steps)
            os.environ["ATTND_TEST_STEP"] = str(step)
            if error is not None:
                os.environ["ATTND_TEST_ERRNO"] = str(error)
            os.environ["ASAN_OPTIONS"] = f"{os.environ.get('ASAN_OPTIONS', '')}:verify_asan_link_order=0"

        self.server = AttndServer(f"--weights_dir={self.folder}", preexec=preload)

    def steps(self):
        return self._steps.read_text().split()


def holds(folder, with_new):
    """A server on this folder has what was acknowledged, and the other set whole or not at all."""
    with AttndServer(f"--weights_dir={folder}") as server:
        store = Store(server)
        names = [name for name, _ in store.list()]
        assert store.answer("before") == right(store, weights(5))
        if with_new is not None:
            assert ("new" in names) == with_new
        if "new" in names:
            assert store.answer("new") == right(store, NEW)
        assert len(files(folder)) == len(names) and all(name.endswith(".safetensors") for name in files(folder))
        assert "refused" not in server.log()
        return "new" in names


def end_killed(server):
    server.close_channels()
    assert server.wait() == -signal.SIGKILL


def test_a_kill_at_any_step_of_a_put_loses_nothing_that_was_acknowledged(faults, before, tmp_path):
    seen = []
    for step in range(1, len(PUT_STEPS) + 2):
        faulty = Faulty(faults, before, tmp_path / str(step), step)
        store = Store(faulty.server)
        if step > len(PUT_STEPS):
            store.put("new", NEW)
            assert faulty.steps() == PUT_STEPS
            faulty.server.kill()
            faulty.server.close_channels()
            assert holds(faulty.folder, True)
            break
        assert failed(lambda: store.put("new", NEW))[0] == grpc.StatusCode.UNAVAILABLE
        end_killed(faulty.server)
        assert faulty.steps() == PUT_STEPS[:step]
        seen.append(holds(faulty.folder, None))
    # Absent until it was renamed, whole afterwards.
    assert seen == [False] * (len(PUT_STEPS) - 1) + [True]


def test_a_kill_at_any_step_of_a_delete(faults, before, tmp_path):
    for step, (name, there) in enumerate([("unlink", True), ("fsync", False)], start=1):
        faulty = Faulty(faults, before, tmp_path / str(step), len(PUT_STEPS) + step)
        store = Store(faulty.server)
        store.put("new", NEW)
        assert failed(lambda: store.delete("new"))[0] == grpc.StatusCode.UNAVAILABLE
        end_killed(faulty.server)
        assert faulty.steps()[len(PUT_STEPS) :][-1] == name
        holds(faulty.folder, there)


@pytest.mark.parametrize(
    "error, code, steps",
    [
        (errno.ENOSPC, grpc.StatusCode.RESOURCE_EXHAUSTED, (1, 2, 5, len(PUT_STEPS) - 2)),
        (errno.EIO, grpc.StatusCode.UNAVAILABLE, (len(PUT_STEPS) - 1, len(PUT_STEPS))),
    ],
    ids=["full", "broken"],
)
def test_a_disk_that_is_full_or_broken_fails_the_put_and_nothing_else(faults, before, tmp_path, error, code, steps):
    for step in steps:
        faulty = Faulty(faults, before, tmp_path / str(step), step, error)
        with faulty.server as server:
            store = Store(server)
            got, words = failed(lambda: store.put("new", NEW))
            assert got == code and "weights_dir" in words and os.strerror(error) in words
            assert store.list() == [("before", 1)] and files(faulty.folder) == files(before)
            assert store.put("new", NEW).version == 1  # the fault was one step's
            assert store.answer("new") == right(store, NEW)


# The operator's.


def test_manifests_are_followed_while_the_server_runs(tmp_path):
    first, second = weights(10), weights(11)
    place(tmp_path / "a.safetensors", safetensors(first))
    place(tmp_path / "a.json", manifest("layer0", 1, ["a.safetensors"]))
    with AttndServer(f"--weights_dir={tmp_path}") as server:
        store = Store(server)
        stored = store.get("layer0")
        assert (stored.from_file, stored.owner, stored.version) == (True, "", 1)
        assert store.answer("layer0") == right(store, first)
        for attempt in (lambda: store.put("layer0", second), lambda: store.delete("layer0")):
            code, words = failed(attempt)
            assert code == grpc.StatusCode.PERMISSION_DENIED and "the operator" in words

        # One appears, with names as checkpoints have them, [out, in], in two files, with a rotary embedding.
        long_names = {role: f"model.layers.1.self_attn.{role}.weight" for role in second}
        renamed = {long_names[role]: array for role, array in turned(second).items()}
        parts = [dict(list(renamed.items())[:3]), dict(list(renamed.items())[3:])]
        for index, part in enumerate(parts):
            place(tmp_path / f"part{index}.safetensors", safetensors(part, "float16"))
        text = manifest(
            "layer1",
            4,
            ["part0.safetensors", "part1.safetensors"],
            long_names,
            weights_transposed=True,
            rotary={"style": "interleaved", "rotary_dim": 8, "rope_base": 500000},
        )
        place(tmp_path / "b.json", text)
        eventually("it is there", lambda: ("layer1", 4) in store.list())
        rotary = {"style": "interleaved", "dim": 8, "base": 500000}
        assert store.answer("layer1") == right(store, second, "float16", rotary=rotary)

        # A new version takes the place of the old one; the same version with other weights too; and a renamed manifest.
        place(tmp_path / "a2.safetensors", safetensors(second))
        place(tmp_path / "a.json", manifest("layer0", 2, ["a2.safetensors"]))
        eventually("the new version is there", lambda: ("layer0", 2) in store.list())
        assert store.answer("layer0") == right(store, second)
        eventually("the old one is not", lambda: ("layer0", 1) not in store.list())
        place(tmp_path / "a.json", manifest("layer0", 2, ["a.safetensors"]))
        eventually("the same version is replaced", lambda: store.answer("layer0", 2) == right(store, first))
        os.rename(tmp_path / "a.json", tmp_path / "c.json")
        eventually("it is loaded again", lambda: 'file="c.json"' in server.log())
        assert store.answer("layer0", 2) == right(store, first)

        # It goes with its manifest.
        (tmp_path / "c.json").unlink()
        eventually("it is gone", lambda: store.list() == [("layer1", 4)])


REFUSED = {
    "truncated": (lambda f, m: f.write_bytes(f.read_bytes()[:-1]), "beyond the end of the file"),
    "longer": (lambda f, m: f.write_bytes(f.read_bytes() + b"!"), "belong to no tensor"),
    "no file": (lambda f, m: f.unlink(), "No such file"),
    "a folder": (lambda f, m: (f.unlink(), f.mkdir()), "not a file"),
    "elsewhere": (lambda f, m: m.update(files=["../x.safetensors"]), "manifest.files"),
    "no such tensor": (lambda f, m: m["tensors"].update(w_q="w_x"), "is in none of the manifest"),
    "twice": (lambda f, m: m.update(files=[f.name] * 2), "safetensors and in x"),
    "heads": (lambda f, m: m.update(kv_heads=3), "projection.kv_heads: 3"),
    "the other way round": (lambda f, m: m.update(weights_transposed=True), "projection.w_"),
    "type": (lambda f, m: f.write_bytes(safetensors(weights(12), "int64")), "expected F32, F16 or BF16"),
    "unknown role": (lambda f, m: m["tensors"].update(w_z="w_q"), "manifest.tensors"),
    "unknown field": (lambda f, m: m.update(heads=4), "manifest.heads: not known"),
    "name": (lambda f, m: m.update(name="../up"), "name:"),
    "version": (lambda f, m: m.update(version=0), "manifest.version: 0"),
    "taken": (lambda f, m: m.update(name="theirs"), "belongs to another identity"),
}


def test_what_does_not_hold_up_is_refused_with_its_reason_and_nothing_changes(tmp_path):
    arrays = weights(12)
    with AttndServer(f"--weights_dir={tmp_path}", admin=True) as server:
        store = Store(server)
        store.put("theirs", arrays)
        place(tmp_path / "good.safetensors", safetensors(arrays))
        place(tmp_path / "good.json", manifest("good", 1, ["good.safetensors"]))
        eventually("the good one is there", lambda: ("good", 1) in store.list())
        before, stored = store.list(), f"attnd_store_used_bytes {2 * store.get('good').bytes}\n"
        for index, (break_it, _) in enumerate(REFUSED.values()):
            file = tmp_path / f"x{index}.safetensors"
            file.write_bytes(safetensors(arrays))
            fields = json.loads(manifest("bad", index + 1, [file.name]))
            break_it(file, fields)
            place(tmp_path / f"bad{index}.json", json.dumps(fields))
        place(tmp_path / "bad.json", "[]")
        place(tmp_path / "same.json", manifest("good", 1, ["good.safetensors"]))
        for index, (_, words) in enumerate(REFUSED.values()):
            line = f'file="bad{index}.json" error="'
            eventually(f"{words} is refused", lambda: line in server.log())
            assert words in server.log().split(line)[1].splitlines()[0]
        eventually("text that is no manifest is refused", lambda: "not a JSON object" in server.log())
        eventually("a second manifest of one set is refused", lambda: "is that of good.json" in server.log())
        page = server.admin("/metrics")[1]
        assert f'attnd_weight_set_loads_total{{result="failed"}} {len(REFUSED) + 2}' in page and stored in page
        assert store.list() == before
        assert store.answer("good") == right(store, arrays)


def test_what_was_refused_goes_live_when_its_cause_is_gone(tmp_path):
    arrays = weights(13)
    whole = safetensors(arrays)
    with AttndServer(f"--weights_dir={tmp_path}", admin=True) as server:
        store = Store(server)
        place(tmp_path / "late.json", manifest("late", 1, ["late.safetensors"]))
        eventually("its file is missing", lambda: "No such file" in server.log())
        place(tmp_path / "late.safetensors", whole[:-100])
        eventually("its file is not whole", lambda: "beyond the end of the file" in server.log())
        with open(tmp_path / "late.safetensors", "ab") as file:
            file.write(whole[-100:])
        eventually("it is live", lambda: store.list() == [("late", 1)])
        assert store.answer("late") == right(store, arrays)
        assert server.log().count("weight set refused") == 2, "each reason is told once"
        page = server.admin("/metrics")[1]
        assert 'attnd_weight_set_loads_total{result="failed"} 2' in page
        assert 'attnd_weight_set_loads_total{result="ok"} 1' in page

        # Another manifest of the same set takes over when this one goes.
        place(tmp_path / "other.json", manifest("late", 1, ["late.safetensors"]))
        eventually("it is refused", lambda: "is that of late.json" in server.log())
        (tmp_path / "late.json").unlink()
        eventually("it is live", lambda: 'weight set loaded file="other.json"' in server.log())
        assert store.answer("late") == right(store, arrays)


def test_a_set_adds_its_own_size_once_to_memory(tmp_path):
    """128 MiB of [out, in] matrices: read, turned and kept, and never twice in memory."""
    size = 2048
    arrays = {role: np.zeros((size, 4 * size), np.float32) for role in ("w_q", "w_k")}
    arrays["w_v"] = np.zeros((size, size), np.float32)
    set_bytes = 9 * size * size * 4
    place(tmp_path / "big.safetensors", safetensors({role: array.T for role, array in arrays.items()}))
    fields = json.loads(manifest("big", 1, ["big.safetensors"], {r: r for r in arrays}, weights_transposed=True))
    fields["kv_heads"] = fields["q_heads"] = 4
    with AttndServer(f"--weights_dir={tmp_path}") as server:
        store = Store(server)
        before = server.resident_bytes()
        place(tmp_path / "big.json", json.dumps(fields))
        eventually("it is there", lambda: store.list() == [("big", 1)])
        assert store.get("big").bytes == set_bytes
        if server.memory_is_its_own():
            assert set_bytes * 0.99 < server.resident_bytes() - before < set_bytes * 1.05 + (8 << 20)
            assert server.peak_resident_bytes() - before < set_bytes * 1.05 + (16 << 20)
