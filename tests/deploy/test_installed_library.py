"""The installed tree as packagers and users meet it: what is where, and programs built from it alone."""

import contextlib
import json
import pathlib
import re
import shutil
import subprocess

import pytest

from attnd_server import BIN, CALL_SECONDS_MAX, ROOT, AttndServer, eventually

BUILD = BIN.parent
USERS = ROOT / "tests" / "deploy" / "library"
# Flags of ours that are nobody else's business.
OURS = re.compile(r"-W(?:error|all|extra|shadow)|FORTIFY|stack-|-fcf-|relro|-pie|GLIBCXX_ASSERTIONS|prefix-map")
SERVER = {"bin/attnd"}
CLIENT = {
    "bin/attn",
    "share/bash-completion/completions/attn",
    "share/zsh/site-functions/_attn",
    "share/fish/vendor_completions.d/attn.fish",
}
LIBRARY = {
    *(f"lib/libattnd_{part}.a" for part in ("client", "wire", "proto")),
    *(f"lib/cmake/attnd/attnd-{part}.cmake" for part in ("config", "config-version", "targets", "targets-release")),
    *(f"include/attnd/v1/{file}.{part}.h" for file in ("attention", "store") for part in ("pb", "grpc.pb")),
    *(f"share/attnd/proto/attnd/v1/{file}.proto" for file in ("attention", "store")),
    *(
        f"include/attnd/client/{name}.h"
        for name in "array client credentials merge npy npz options problem safetensors store".split()
    ),
}


def run(*command, **more):
    ran = subprocess.run(
        [str(word) for word in command], capture_output=True, text=True, check=False, timeout=600, **more
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return ran.stdout


def install(prefix, *more):
    run("cmake", "--install", BUILD, "--prefix", prefix, *more)


def files(prefix):
    """Paths below the prefix; Debian's lib/<architecture> counts as lib."""
    found = {path.relative_to(prefix).as_posix() for path in prefix.rglob("*") if path.is_file()}
    return {re.sub(r"^lib/[^/]+-linux-gnu/", "lib/", path) for path in found}


@pytest.fixture(scope="module")
def prefix(tmp_path_factory):
    """The whole tree, moved after it was installed."""
    folder = tmp_path_factory.mktemp("installed")
    install(folder / "first")
    (folder / "first").rename(folder / "moved")
    return folder / "moved"


@pytest.fixture(scope="module")
def build(prefix, tmp_path_factory):
    """build(folder) -> where its programs are, built as anyone would."""

    def build_from(source):
        copy = tmp_path_factory.mktemp(source.name)
        shutil.copytree(source, copy / "source")
        run(
            "cmake",
            *("-S", copy / "source", "-B", copy / "build", "-G", "Ninja", "-DCMAKE_BUILD_TYPE=Release"),
            *(f"-DCMAKE_PREFIX_PATH={prefix}", "-DCMAKE_EXPORT_COMPILE_COMMANDS=ON"),
        )
        run("cmake", "--build", copy / "build")
        return copy / "build"

    return build_from


def test_everything_is_in_one_of_three_components(prefix, tmp_path):
    for name, expected in (("server", SERVER), ("client", CLIENT), ("library", LIBRARY)):
        install(tmp_path / name, "--component", name)
        assert files(tmp_path / name) == expected
    assert files(prefix) == SERVER | CLIENT | LIBRARY


def test_nothing_of_where_and_how_it_was_built_is_in_it(prefix):
    built_at = [str(folder).encode() for folder in (ROOT, BUILD, prefix, prefix.parent / "first")]
    for path in (path for path in prefix.rglob("*") if path.is_file() and path.parts[-2] != "bin"):
        content = path.read_bytes()
        assert not [folder for folder in built_at if folder in content], path
        if path.suffix == ".cmake":
            assert not OURS.search(content.decode()), path


def test_the_example_builds_from_the_installed_tree_and_prints_the_lesson(prefix, build, server):
    folder = build(ROOT / "client" / "example")
    for command in json.loads((folder / "compile_commands.json").read_text()):
        assert not OURS.search(command["command"]), command["command"]
    assert not OURS.search((folder / "build.ninja").read_text())
    # Lesson: the same figures as in the README.
    assert run(folder / "first_call", server.address).splitlines() == [
        "weights 0.5871 0.1859 0.2270",
        "output  0.6151 0.2941 0.5616 0.5337",
    ]


@pytest.mark.parametrize("compiler", ["g++", "clang++"])
@pytest.mark.parametrize("standard", ["c++17", "c++20"])
def test_client_h_stands_alone_without_a_warning_or_grpc(prefix, tmp_path, compiler, standard):
    (tmp_path / "user.cc").write_text('#include "attnd/client/client.h"\n')
    strict = ["-Wall", "-Wextra", "-Wpedantic", "-Werror", f"-std={standard}", f"-I{prefix / 'include'}"]
    # -M names every file that is read, and goes through the preprocessor alone.
    run(compiler, *strict, "-fsyntax-only", tmp_path / "user.cc")
    read = run(compiler, *strict, "-M", tmp_path / "user.cc").replace("\\\n", " ").split()
    ours = {name for name in read if name.startswith(str(prefix))}
    assert len(ours) == 6, ours
    assert not [name for name in read if "grpc" in name.removeprefix(str(prefix))]


@pytest.mark.parametrize("name", sorted(pathlib.PurePath(path).name for path in LIBRARY if "attnd/client" in path))
def test_every_header_stands_alone(prefix, tmp_path, name):
    (tmp_path / "user.cc").write_text(f'#include "attnd/client/{name}"\n')
    strict = ["-Wall", "-Wextra", "-Wpedantic", "-Werror", "-std=c++17", f"-I{prefix / 'include'}"]
    run("g++", *strict, "-fsyntax-only", tmp_path / "user.cc")


def calls_answered(server):
    """Attend calls, as the log counts them."""
    return len(re.findall(r"\bAttend\b.*\bOK\b", server.log()))


@pytest.fixture
def three_servers():
    """Three servers, of which the second may be killed."""
    with AttndServer() as first, AttndServer() as third, contextlib.ExitStack() as stack:
        second = AttndServer()
        stack.callback(shutil.rmtree, second.folder, ignore_errors=True)
        stack.callback(second.kill)
        yield first, second, third


def test_calls_spread_over_three_servers_and_go_on_without_one(build, three_servers):
    program = build(USERS) / "spread"
    first, second, third = three_servers
    target = "ipv4:" + ",".join(server.address for server in three_servers)
    with subprocess.Popen([program, target], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as asking:

        def ask(calls, meanwhile=lambda: None):
            """How many of them failed, and the first failure."""
            asking.stdin.write(f"{calls}\n")
            asking.stdin.flush()
            meanwhile()
            return asking.stdout.readline().split(" ", 1)

        asked = 0

        def all_answered():
            """What each has, when all that was asked is in the logs, which comes after the answers."""
            answered = [calls_answered(server) for server in three_servers]
            return answered if sum(answered) == asked else None

        while asked == 0 or not all(eventually("all are in the logs", all_answered)):
            assert ask(3)[0] == "0"
            asked += 3
        before = all_answered()
        assert ask(300)[0] == "0"
        # In turn means the same number each.
        eventually(
            "each server has answered a third",
            lambda: [calls_answered(server) for server in three_servers] == [calls + 100 for calls in before],
        )
        # What is on its way to the one that dies is asked again, of another.
        failed, words = ask(1000, meanwhile=second.kill)
        assert failed == "0", words
        survivors = calls_answered(first) + calls_answered(third)
        assert ask(300)[0] == "0"
        eventually(
            "the others have answered all",
            lambda: calls_answered(first) + calls_answered(third) >= survivors + 300,
        )
        asking.stdin.close()
        assert asking.wait(CALL_SECONDS_MAX) == 0
