"""The machine's clock is set, by a day and back, under all that waits: deadlines and limits mean time that passed.

The server runs with wall_clock.c under it, so that its time of day jumps when a test says so.
"""

import os
import pathlib
import queue
import struct
import subprocess
import threading

import grpc
import pytest

import wire
from aftermath import computes, good_call, leaves_nothing, long_request, random_request
from attnd_server import AttndServer, CALL_SECONDS_MAX, eventually
from h2_peer import H2Peer, data_frames, prefixed

DAY_S = 86400
SOURCE = pathlib.Path(__file__).with_name("wall_clock.c")


class WallClock:
    def __init__(self, folder):
        self._file = folder / "shift"
        self._library = folder / "wall_clock.so"
        subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-o", self._library, SOURCE, "-ldl"], check=True)
        self._file.write_bytes(struct.pack("q", 0))

    def jump(self, seconds):
        """To so many seconds from the true time."""
        with open(self._file, "r+b") as file:
            file.write(struct.pack("q", int(seconds * 1e9)))

    def server(self, *flags):
        """One whose time of day this is, and which is seen to take it."""

        def preload():
            os.environ["LD_PRELOAD"] = str(self._library)
            os.environ["ATTND_TEST_CLOCK"] = str(self._file)
            os.environ["ASAN_OPTIONS"] = f"{os.environ.get('ASAN_OPTIONS', '')}:verify_asan_link_order=0"

        return AttndServer(*flags, preexec=preload)


@pytest.fixture
def clock(tmp_path):
    return WallClock(tmp_path)


def log_years(server):
    return {line[:4] for line in server.log().splitlines()}


def test_the_clock_is_what_the_log_shows(clock):
    with clock.server() as server:
        good_call(server)
        clock.jump(400 * DAY_S)
        good_call(server)
        eventually("its time of day has jumped", lambda: len(log_years(server)) > 1)


@pytest.mark.parametrize("days", [1, -1])
@pytest.mark.parametrize("kind", wire.CALLS)
def test_calls_under_way_go_on(clock, kind, days):
    """Work of half a second or more, with minutes to do it in, and a day passes by the clock."""
    with clock.server() as server, leaves_nothing(server):
        request, answers = long_request(2048), []
        right = wire.attend(server.stub(), request).raw
        caller = threading.Thread(target=lambda: answers.append(wire.CALLS[kind](server.stub(), request).raw))
        with computes(server, 0.05):
            caller.start()
        clock.jump(days * DAY_S)
        caller.join()
        assert answers == [right]


@pytest.mark.parametrize("days", [1, -1])
def test_deadlines_still_hold(clock, days):
    """Five seconds for a message whose second half never comes; a day back must not make it a day and five seconds."""
    with clock.server() as server, leaves_nothing(server), H2Peer(server) as peer:
        stream, head = peer.headers("Attend", ("grpc-timeout", "5S"))
        peer.send(head, *data_frames(stream, prefixed(bytes(1000), length=2000)))
        assert peer.pings() and not peer.calls[stream].over()
        clock.jump(days * DAY_S)
        good_call(server)  # at once, not with everything of that day over
        assert peer.pings() and not peer.calls[stream].over()
        assert peer.outcome(stream) == grpc.StatusCode.DEADLINE_EXCEEDED.value[0]


@pytest.mark.parametrize("days", [1, -1])
def test_a_sender_that_stops_is_let_go_when_its_time_is_over(clock, days):
    """After the jump, and not by it: another problem of the stream, whose pieces keep coming, is answered."""
    with clock.server("--receive_stall_ms=3000") as server, leaves_nothing(server):
        sent = queue.SimpleQueue()
        stopped = list(wire.stream_messages(1, random_request(1, 100, 16)))
        steady = list(wire.stream_messages(2, random_request(1, 100, 16), piece_bytes=1 << 9))
        for message in stopped[:2] + steady[:1]:
            sent.put(message)
        replies = server.stub().AttendStream(iter(sent.get, None), timeout=CALL_SECONDS_MAX)
        closings = {}

        def read():
            for reply in replies:
                if reply.HasField("closing"):
                    closings[reply.problem_id] = reply.closing

        reader = threading.Thread(target=read)
        reader.start()
        clock.jump(days * DAY_S)
        for message in steady[1:]:
            threading.Event().wait(0.1)
            sent.put(message)
        eventually("the stopped one is told", lambda: 1 in closings)
        sent.put(None)
        reader.join()
        assert closings[1].error.code == grpc.StatusCode.DEADLINE_EXCEEDED.value[0]
        assert not closings[2].HasField("error")


@pytest.mark.parametrize("days", [1, -1])
def test_a_drain_ends_in_its_time(clock, days):
    with clock.server("--drain_ms=1000") as server:
        with computes(server, 0.05):
            call = server.stub().Attend.future(long_request(16384), timeout=CALL_SECONDS_MAX)
        server.signal()
        eventually("it drains", lambda: "draining" in server.log())
        clock.jump(days * DAY_S)
        assert server.wait() == 0
        assert call.exception().code() in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED)


def test_a_clock_that_jumps_all_the_time(clock):
    """No call fails, small or large, while the time of day goes back and forth."""
    with clock.server() as server, leaves_nothing(server):
        request, stub = random_request(4, 100, 64), server.stub()
        right = wire.attend(stub, request).raw
        for number in range(100):
            clock.jump((-1) ** number * number * 3600)
            for call in wire.CALLS.values():
                assert call(stub, request).raw == right
