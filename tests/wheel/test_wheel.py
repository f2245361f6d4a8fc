"""The Python package as it is handed out: an sdist, the wheel of that alone, and the tests again on what was installed.

By what tests/venv.sh has put into build/venv-python, where gRPC, protobuf and NumPy are newer than Debian's, with which
tests/python runs otherwise.
"""

import os
import re
import subprocess
import zipfile

import pytest

from attnd_server import BIN, ROOT

TREE = ROOT / "client" / "python"
TOOLS = ROOT / "build" / "venv-python"
BEFORE = sorted(TREE.rglob("*"))
SECONDS_MAX = 1200  # a hang bound


class Failed(Exception):
    """What a command printed before it ended badly."""


def run(*command, cwd=None, **environment):
    inherited = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    ran = subprocess.run(
        list(map(str, command)),
        cwd=cwd,
        env=inherited | {"PYTHONDONTWRITEBYTECODE": "1"} | environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        timeout=SECONDS_MAX,
    )
    if ran.returncode != 0:
        raise Failed(ran.stdout[-8000:])
    return ran.stdout


def built(kind, source, folder):
    run(TOOLS / "bin" / "python", "-m", "hatchling", "build", "-t", kind, "-d", folder, cwd=source)
    (made,) = folder.iterdir()
    return made


@pytest.fixture(scope="module")
def sdist(tmp_path_factory):
    """Unpacked where no repository is around it."""
    archive = built("sdist", TREE, tmp_path_factory.mktemp("sdist"))
    folder = tmp_path_factory.mktemp("unpacked")
    run("tar", "-xf", archive, "-C", folder)
    (top,) = folder.iterdir()
    return top


@pytest.fixture(scope="module")
def wheel(sdist, tmp_path_factory):
    return built("wheel", sdist, tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def installed(wheel, tmp_path_factory):
    """The Python of an environment with the wheel, and beside it what build/venv-python has."""
    folder = tmp_path_factory.mktemp("environment")
    run("/usr/bin/python3", "-m", "venv", folder)
    (packages,) = folder.glob("lib/python*/site-packages")
    (tools,) = TOOLS.glob("lib/python*/site-packages")
    (packages / "tools.pth").write_text(f"{tools}\n")
    run(folder / "bin" / "pip", "install", "--no-index", "--no-deps", wheel)
    return folder / "bin" / "python"


def test_the_sdist_has_the_contract(sdist):
    for proto in (ROOT / "proto" / "attnd" / "v1").glob("*.proto"):
        assert (sdist / "proto" / "attnd" / "v1" / proto.name).read_bytes() == proto.read_bytes()


def test_the_wheel_of_the_sdist_is_the_trees(wheel, tmp_path):
    def contents(path):
        with zipfile.ZipFile(path) as archive:
            return {name: archive.read(name) for name in archive.namelist()}

    ours = contents(wheel)
    assert ours == contents(built("wheel", TREE, tmp_path))
    assert {"attnd/py.typed", "attnd/contract.binpb", "attnd/aio.py"} < set(ours)
    version = re.search(r"project\(attnd VERSION (\S+)", (ROOT / "CMakeLists.txt").read_text()).group(1)
    assert f"Version: {version}\n" in ours[f"attnd-{version}.dist-info/METADATA"].decode()


def test_building_leaves_nothing_in_the_tree(wheel):
    assert sorted(TREE.rglob("*")) == BEFORE


def test_everything_again_on_what_was_installed(installed):
    ran = run(
        installed,
        *("-m", "pytest", "-p", "no:cacheprovider", "-c", "tests/pytest.ini", "-v", "tests/python"),
        cwd=ROOT,
        ATTND_BIN=str(BIN),
    )
    assert "test_bfloat16.py" in ran and "skipped" not in ran


def test_the_lesson(installed, server, tmp_path):
    """The README's program prints what its comments say, and its picture is the one that the README shows."""
    program = (TREE / "lesson.py").read_text()
    assert program.count("127.0.0.1:50051") == 1
    (tmp_path / "lesson.py").write_text(program.replace("127.0.0.1:50051", server.address))
    printed = run(installed, "lesson.py", cwd=tmp_path, MPLBACKEND="agg").splitlines()
    promised = re.findall(r"# (\[.*\])$", program, re.MULTILINE)
    assert len(promised) == 2 and [line.split(maxsplit=1)[1] for line in printed] == promised
    assert "0.5871 0.1859 0.227" in printed[0] and "0.6151 0.2941 0.5616 0.5337" in printed[1]
    run(installed, "-c", SAME_PICTURE, tmp_path / "lesson.png", TREE / "lesson.png")


SAME_PICTURE = """
import sys
import matplotlib.pyplot as plt
import numpy as np
made, kept = (plt.imread(path) for path in sys.argv[1:])
np.testing.assert_allclose(made, kept, atol=0.02)
"""


def test_types_are_right(installed, tmp_path):
    """The package itself, strictly, and a caller that takes its word for what comes back."""
    mypy = ("-m", "mypy", "--cache-dir", tmp_path / "cache")
    run(installed, *mypy, "--config-file", TREE / "pyproject.toml", TREE / "attnd")
    (tmp_path / "caller.py").write_text(CALLER)
    run(installed, *mypy, "--strict", tmp_path / "caller.py")
    (tmp_path / "wrong.py").write_text(CALLER.replace("causal=True", 'casual=True, layout="nhd"'))
    with pytest.raises(Failed, match="""keyword argument "casual"(.|\n)*Literal\\['nhd'\\]"""):
        run(installed, *mypy, "--strict", tmp_path / "wrong.py")


CALLER = """
import attnd


def first(client: attnd.Client, q: object) -> attnd.Block:
    answer: attnd.Answer = client.attend(q, q, q, causal=True, outputs=["lse"])
    assert answer.statistics is not None and answer.statistics.flops > 0
    with client.attend_stream(q, q, q) as blocks:
        return next(blocks)


async def limit(client: attnd.aio.Client) -> int:
    return (await client.info()).limits["message_bytes_max"]


try:
    print(first(attnd.connect("localhost:1", timeout=1.0), [[1.0]]))
except attnd.ResourceExhausted as error:
    print(error.retry_after_s)
"""
