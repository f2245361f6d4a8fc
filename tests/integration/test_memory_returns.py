"""Resident memory goes back to where it was when the load is over: large messages, large tensors, answers in blocks."""

from concurrent import futures

import pytest

import wire
from aftermath import good_call, leaves_nothing, random_request
from attnd_server import AttndServer, eventually

POOL_BYTES = 64 << 20


def attend(stub, request):
    return wire.attend(stub, request)


def attend_stream(stub, request):
    return wire.attend_stream(stub, request)


@pytest.mark.parametrize("call", [attend, attend_stream])
def test_after_large_problems(call):
    with AttndServer(f"--pool_bytes_max={POOL_BYTES}", "--message_bytes_max=134217728") as server:
        with leaves_nothing(server):
            for _ in range(20):
                good_call(server)
            idle = server.resident_bytes()
            # Keys of 32 MB and 8 MB, few queries: messages of 80 MB and 20 MB.
            requests = [random_request(1, rows, 256) for rows in (8192, 2048)]
            for request in requests:
                request.q.CopyFrom(random_request(1, 8, 256).q)
            with futures.ThreadPoolExecutor(4) as threads:
                for _ in threads.map(lambda i: call(server.stub(), requests[i % 2]), range(12)):
                    pass
            assert server.peak_resident_bytes() > idle + 3 * (8 << 20)
            server.close_channels()
            eventually("memory is back", lambda: server.resident_bytes() < 1.1 * idle + POOL_BYTES)
            # The pool gives its pages back too.
            eventually("all of it", lambda: server.resident_bytes() < 1.1 * idle + POOL_BYTES / 8)
