"""Shared by every Python test: generated stubs on the path, and a server for those that need no flags of their own.

The server under test is the one in $ATTND_BIN (default: build/release/bin), a real process behind a real connection.
"""

import pathlib
import shutil
import subprocess
import sys

import pytest

TESTS = pathlib.Path(__file__).resolve().parent
ROOT = TESTS.parent
STUBS = ROOT / "build" / "stubs"
PROTO = ROOT / "proto"


def generate_stubs():
    """Writes attnd.v1, the inference and the health protocol as Python modules under build/stubs.

    The health file is generated from its own folder, as `health_pb2`: a folder named grpc would hide the grpc package.
    """
    STUBS.mkdir(parents=True, exist_ok=True)
    for include, name in (
        (PROTO, "attnd/v1/attention.proto"),
        (PROTO, "attnd/v1/store.proto"),
        (PROTO, "inference/inference.proto"),
        (PROTO / "grpc/health/v1", "health.proto"),
    ):
        subprocess.run(
            [
                "protoc",
                f"-I{include}",
                f"--python_out={STUBS}",
                f"--grpc_out={STUBS}",
                f"--plugin=protoc-gen-grpc={shutil.which('grpc_python_plugin')}",
                str(include / name),
            ],
            check=True,
        )


generate_stubs()
for folder in (STUBS, TESTS / "integration", TESTS / "conformance", TESTS / "adversarial"):
    sys.path.insert(0, str(folder))

from attnd_server import AttndServer  # noqa: E402  (needs the path above)


@pytest.fixture(scope="session")
def server():
    """A server with the default flags; it must survive everything the whole session does to it."""
    with AttndServer() as running:
        yield running


@pytest.fixture(scope="session")
def stub(server):
    return server.stub()
