"""Connections beyond the cap and a lack of descriptors: refused, never the end of listening."""

import resource
import signal
import socket
import struct
import threading

import pytest

from aftermath import good_call, is_served, leaves_nothing
from attnd.v1 import attention_pb2 as pb
from attnd_server import CALL_SECONDS_MAX, AttndServer, eventually


def connect(server):
    peer = socket.create_connection(("127.0.0.1", server.port), timeout=CALL_SECONDS_MAX)
    peer.settimeout(CALL_SECONDS_MAX)
    return peer


def is_taken(peer):
    """A connection that was taken gets HTTP/2 SETTINGS; one beyond the cap is closed without a byte."""
    try:
        peer.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00")
        return len(peer.recv(9)) > 0
    except ConnectionError:
        return False


def served_connection(server):
    """Once a place is free: connections of calls before may still be closing."""
    peer = connect(server)
    if is_taken(peer):
        return peer
    peer.close()
    return None


def test_one_more_than_connections_max_is_closed():
    with AttndServer("--connections_max=8") as server, leaves_nothing(server):
        peers = [eventually("a connection is taken", lambda: served_connection(server)) for _ in range(8)]
        beyond = connect(server)
        assert not is_taken(beyond)
        beyond.close()
        for peer in peers:
            peer.close()
        eventually("a place is free again", lambda: served_connection(server)).close()


def test_connections_that_end_are_counted_once():
    """Eight break off while the next eight wait to be taken, and are given descriptors of those before."""
    with AttndServer("--connections_max=8") as server, leaves_nothing(server):
        peers = [eventually("a connection is taken", lambda: served_connection(server)) for _ in range(8)]
        for _ in range(20):
            server.signal(signal.SIGSTOP)
            for peer in peers:
                peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                peer.close()
            peers = [connect(server) for _ in range(8)]
            server.signal(signal.SIGCONT)
            peers = [peer for peer in peers if is_taken(peer)]
            while len(peers) < 8:
                peers.append(eventually("a connection is taken", lambda: served_connection(server)))
            assert not is_taken(connect(server))
        for peer in peers:
            peer.close()
        eventually("a place is free again", lambda: served_connection(server)).close()


def test_out_of_descriptors_is_not_the_end():
    with AttndServer("--connections_max=100000") as server, leaves_nothing(server):
        before = resource.prlimit(server.pid, resource.RLIMIT_NOFILE)
        resource.prlimit(server.pid, resource.RLIMIT_NOFILE, (server.descriptors() + 20, before[1]))
        peers = [connect(server) for _ in range(60)]
        eventually("it says so", lambda: "accepting pauses" in server.log())
        for peer in peers:
            peer.close()
        resource.prlimit(server.pid, resource.RLIMIT_NOFILE, before)
        eventually("calls work again", lambda: is_served(server))


def test_the_self_probe_tells_a_crowd_from_an_end():
    """At connections_max its own connections are turned away like others', and the server lives.

    The probe keeps taking one place of the two, and a call's connection may still be closing: a call may have to wait.
    """
    with AttndServer("--connections_max=2", "--self_probe_ms=20") as server:
        crowd = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(4)]
        eventually("the probe is turned away", lambda: server.log().count("self-probe failed") > 6)
        for peer in crowd:
            peer.close()
        eventually("there is room again", lambda: is_served(server))


def is_told_to_go(peer):
    """Reads frames until a GOAWAY (type 7) or the end of the connection."""
    peer.settimeout(CALL_SECONDS_MAX)
    peer.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00")
    buffer = b""
    while True:
        while len(buffer) >= 9 and len(buffer) >= 9 + int.from_bytes(buffer[:3], "big"):
            if buffer[3] == 7:
                return True
            buffer = buffer[9 + int.from_bytes(buffer[:3], "big") :]
        came = peer.recv(4096)
        if not came:
            return False
        buffer += came


@pytest.mark.parametrize("flag", ["connection_idle_ms", "connection_age_ms"])
def test_a_connection_has_its_time(flag):
    with AttndServer(f"--{flag}=1000") as server:
        with connect(server) as peer:
            assert is_told_to_go(peer)
        good_call(server)


def test_a_stream_outlives_the_age_of_its_connection():
    with AttndServer("--connection_age_ms=1000") as server:
        stop = threading.Event()

        def requests():
            yield pb.AttendStreamRequest(problem_id=1, cancel=pb.CancelProblem())
            stop.wait(60)
            yield pb.AttendStreamRequest(problem_id=2, cancel=pb.CancelProblem())

        # A problem that was never opened is answered by its closing: once now, once when the connection is old.
        answers = server.stub().AttendStream(requests(), timeout=CALL_SECONDS_MAX)
        assert next(answers).problem_id == 1
        with connect(server) as peer:
            assert is_told_to_go(peer)  # one of the same age was
        stop.set()
        assert next(answers).problem_id == 2
