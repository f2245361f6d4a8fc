"""The package under test: the one that is installed beside the Python that runs, or else the tree's own sources.

Where it is not installed, build/python holds what a wheel would: the sources, and the contract's descriptors.
"""

import importlib.metadata
import importlib.util
import pathlib
import shutil
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
CONTRACT = ("attnd/v1/attention.proto", "attnd/v1/store.proto")


def from_tree():
    package = ROOT / "build" / "python" / "attnd"
    shutil.rmtree(package, ignore_errors=True)
    shutil.copytree(ROOT / "client" / "python" / "attnd", package)
    subprocess.run(
        ["protoc", "-Iproto", f"--descriptor_set_out={package / 'contract.binpb'}", "--include_imports", *CONTRACT],
        cwd=ROOT,
        check=True,
    )
    sys.path.insert(0, str(package.parent))
    sys.modules.pop("attnd", None)  # the stubs' folder, which the package takes in (tests/conftest.py)


try:
    importlib.metadata.version("attnd")
except importlib.metadata.PackageNotFoundError:
    from_tree()

import attnd  # noqa: E402  (before any test module can find another one)
from attnd_server import CALL_SECONDS_MAX  # noqa: E402

# What needs more than NumPy, for where that is: run by the wheel's own test (test_wheel.py), which has it.
collect_ignore = [] if importlib.util.find_spec("ml_dtypes") else ["test_bfloat16.py"]
collect_ignore += [] if importlib.util.find_spec("torch") else ["test_torch.py"]


@pytest.fixture(scope="session")
def stub(server):
    """The stub of the other tests, which says whom it calls."""
    stub = server.stub()
    stub.address = server.address
    return stub


@pytest.fixture(scope="session")
def client(server):
    with attnd.connect(server.address, timeout=CALL_SECONDS_MAX) as connected:
        yield connected
