"""More connections than the cap and than descriptors, and connections that say nothing or not HTTP/2."""

import resource
import socket

import pytest

from aftermath import is_served
from attnd_server import AttndServer, eventually
from h2_peer import PREFACE, H2Peer
from survival import survives

MIB = 1 << 20
FLOOD = 500


def connections(server, count, first_bytes=b""):
    peers = []
    for _ in range(count):
        peer = socket.create_connection(("127.0.0.1", server.port), timeout=60)
        peers.append(peer)
        if first_bytes:
            try:
                peer.sendall(first_bytes)
            except ConnectionError:
                pass  # one beyond the cap
    return peers


def close_all(peers):
    for peer in peers:
        peer.close()


@pytest.mark.parametrize("first_bytes", [b"", PREFACE, b"GET / HTTP/1.1\r\nHost: attnd\r\n\r\n", b"\x16\x03\x01"])
def test_more_than_connections_max(first_bytes):
    """Again and again: places of connections that ended are free for others at once."""
    with AttndServer("--connections_max=100") as server, survives(server, "connections", 20000, 64 * MIB):
        for _ in range(3):
            close_all(connections(server, FLOOD, first_bytes))
            eventually("calls work again", lambda: is_served(server))


@pytest.mark.parametrize("first_bytes", [b"", PREFACE])
def test_more_than_there_are_descriptors(first_bytes):
    with AttndServer("--connections_max=100000") as server, survives(server, "descriptors", 20000, 64 * MIB):
        limits = resource.prlimit(server.pid, resource.RLIMIT_NOFILE)
        resource.prlimit(server.pid, resource.RLIMIT_NOFILE, (server.descriptors() + 64, limits[1]))
        for _ in range(2):
            peers = connections(server, FLOOD, first_bytes)
            eventually("it says so", lambda: "accepting pauses" in server.log())
            close_all(peers)
            eventually("calls work again", lambda: is_served(server))
        assert server.log().count("accepting pauses") < FLOOD  # its log is no flood
        resource.prlimit(server.pid, resource.RLIMIT_NOFILE, limits)


def test_a_call_goes_on_while_connections_flood():
    """One that was open before the flood is served all the time."""
    with AttndServer("--connections_max=100") as server, survives(server, "beside a call", 40000, 64 * MIB):
        with H2Peer(server) as peer:
            for _ in range(5):
                stream = peer.call("Info", b"")
                flood = connections(server, FLOOD)
                assert peer.outcome(stream) == 0
                assert peer.outcome(peer.call("Info", b"")) == 0
                close_all(flood)
