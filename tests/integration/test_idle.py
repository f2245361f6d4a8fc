"""A server that nobody asks anything costs next to nothing, connected to or not."""

import time

import pytest

from aftermath import leaves_nothing
from attnd.v1 import attention_pb2 as pb
from attnd_server import AttndServer, CALL_SECONDS_MAX

SECONDS = 3
SHARE_MAX = 0.1  # of one core; ten times what it may be


@pytest.mark.parametrize("connections", [0, 10])
def test_idle(connections):
    with AttndServer() as server, leaves_nothing(server):
        stubs = [server.stub() for _ in range(connections)]
        for stub in stubs:
            stub.Info(pb.InfoRequest(), timeout=CALL_SECONDS_MAX)
        spent, start = server.cpu_seconds(), time.monotonic()
        time.sleep(SECONDS)
        share = (server.cpu_seconds() - spent) / (time.monotonic() - start)
        print(f"{connections} idle connections: {100 * share:.2f} % of a core")
        assert share < SHARE_MAX
