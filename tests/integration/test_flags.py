"""The command line of the server: a flag file, refusals in one line, and a port that is taken."""

import subprocess

import pytest

from aftermath import good_call
from attnd.v1 import attention_pb2 as pb
from attnd_server import BIN, AttndServer, CALL_SECONDS_MAX


def run(*flags):
    command = [BIN / "attnd", "--admin_listen=", *flags]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)


def test_a_flag_file(tmp_path):
    (tmp_path / "flags").write_text("--threads=1\n--block_bytes=65536\n")
    with AttndServer(f"--flagfile={tmp_path / 'flags'}") as server:
        info = server.stub().Info(pb.InfoRequest(), timeout=CALL_SECONDS_MAX)
        assert info.threads == 1
        assert {limit.flag: limit.value for limit in info.limits}["block_bytes"] == 65536
        good_call(server)


@pytest.mark.parametrize(
    "flag, words",
    [
        ("--threads=-1", ["threads", "-1"]),
        ("--block_bytes=1", ["block_bytes", "1"]),
        ("--log_format=xml", ["log_format", "xml"]),
        ("--no_such_flag=1", ["no_such_flag"]),
        ("--listen=", ["listen"]),
        ("surplus", ["surplus"]),
        ("--listen=127.0.0.1:99999", ["99999"]),
    ],
)
def test_a_wrong_flag(flag, words):
    ended = run(*([flag] if flag.startswith("--listen") else ["--listen=127.0.0.1:0", flag]))
    assert ended.returncode > 0
    for word in words:
        assert word in ended.stderr + ended.stdout


def test_a_port_that_is_taken():
    with AttndServer() as server:
        ended = run(f"--listen={server.address}")
        assert ended.returncode > 0 and server.address in ended.stderr
        good_call(server)
