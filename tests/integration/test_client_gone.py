"""A client that dies in the middle: killed, with no goodbye of its own, while the server computes or sends."""

import subprocess
import sys

import pytest

from aftermath import leaves_nothing, memory_reserved
from attnd_server import AttndServer, ROOT, eventually

CLIENT = """
import sys
sys.path[:0] = {paths!r}
import grpc
import wire
from aftermath import long_request, random_request
from attnd.v1 import attention_pb2_grpc
stub = attention_pb2_grpc.AttentionServiceStub(grpc.insecure_channel({address!r}))
print("calling", flush=True)
if {kind!r} == "stream":
    replies = stub.AttendStream(wire.stream_messages(1, random_request(1, 4096, 8, outputs=("weights",))))
    next(replies)
    print("reading", flush=True)
    sys.stdin.read()
else:
    stub.Attend(long_request())
"""


@pytest.mark.parametrize("kind", ["attend", "stream"])
def test_a_client_that_is_killed(kind):
    with AttndServer() as server, leaves_nothing(server):
        paths = [str(ROOT / folder) for folder in ("build/stubs", "tests/conformance", "tests/integration")]
        code = CLIENT.format(paths=paths, address=server.address, kind=kind)
        with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as client:
            assert client.stdout.readline() == b"calling\n"
            if kind == "stream":
                assert client.stdout.readline() == b"reading\n"
            eventually("the server is at work", lambda: memory_reserved(server) > 0)
            client.kill()
        eventually("the server noticed", lambda: memory_reserved(server) == 0)
