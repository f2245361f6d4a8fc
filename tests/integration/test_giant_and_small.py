"""A small problem never waits for a giant, of its own client or of another; the giant loses time and no bytes."""

import wire
from aftermath import computes, leaves_nothing, random_request
from attnd_server import AttndServer, CALL_SECONDS_MAX


def test_giant_and_small():
    with AttndServer("--threads=1") as server, leaves_nothing(server):
        # One unit of the giant takes longer than a slice; a small one is still too large to be done on the spot.
        giant, small = random_request(1, 16384, 64), random_request(1, 256, 64)
        quiet = wire.attend(server.stub(), giant)
        alone = wire.attend(server.stub(), small)
        stub = server.stub()
        with computes(server, 0.1):
            running = stub.Attend.future(giant, timeout=CALL_SECONDS_MAX)
        callers, answered = (stub, server.stub()), 0
        while not running.done():
            assert wire.attend(callers[answered % 2], small).raw == alone.raw
            answered += 1
        assert answered > 10
        disturbed = running.result()
        assert disturbed.output.data == quiet.raw["output"]
        assert disturbed.statistics.slices > quiet.statistics.slices
        assert disturbed.statistics.threads_used == 1
