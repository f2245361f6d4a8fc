"""Thousands of calls cancelled at random moments: each ends once, none is computed on, and nothing is left."""

import collections
import random

import grpc

import wire
from aftermath import leaves_nothing, long_request, memory_reserved, random_request
from attnd_server import AttndServer, CALL_SECONDS_MAX, eventually

CALLS, IN_FLIGHT = 10_000, 100


def test_cancel_storm():
    chance = random.Random(1)
    with AttndServer() as server, leaves_nothing(server):
        # On the spot, handed to a worker, and long.
        requests = [random_request(1, 8, 16), random_request(1, 160, 16), long_request(64)]
        expected = [wire.attend(server.stub(), request).raw["output"] for request in requests]
        stubs = [server.stub() for _ in range(4)]
        ends, running = collections.Counter(), []

        def end_one():
            which, call = running.pop(chance.randrange(len(running)))
            cancelled = call.cancel()
            try:
                assert call.result().output.data == expected[which]
                ends["answered"] += 1
                assert not cancelled
            except grpc.FutureCancelledError:
                ends["cancelled"] += 1
                assert cancelled

        for _ in range(CALLS):
            which = chance.randrange(len(requests))
            running.append((which, chance.choice(stubs).Attend.future(requests[which], timeout=CALL_SECONDS_MAX)))
            if len(running) == IN_FLIGHT:
                end_one()
        while running:
            end_one()
        assert ends["answered"] + ends["cancelled"] == CALLS and min(ends.values()) > 0
        eventually("nothing is reserved", lambda: memory_reserved(server) == 0)
        server.close_channels()
        eventually("no unit runs", server.rests)
