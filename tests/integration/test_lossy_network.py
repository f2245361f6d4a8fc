"""A network that loses packets, and one that is cut: a network namespace of its own, with nftables on its only line.

Needs root, as the build machines give it, and fails without.
"""

import contextlib
import ctypes
import os
import subprocess
import threading

import pytest

import wire
from aftermath import endless_request, good_call, is_served, memory_reserved, random_request
from attnd_server import AttndServer, CALL_SECONDS_MAX, eventually

CLONE_NEWNET = 0x40000000


def run(*words):
    subprocess.run([str(word) for word in words], check=True, capture_output=True, timeout=60)


class Line:
    """A namespace with one line to it; the server lives there at `address`."""

    def __init__(self):
        self.name = f"attnd-{os.getpid()}"
        self._near = f"attnd{os.getpid() % 100000}"
        subnet = f"10.{200 + os.getpid() % 50}.{os.getpid() // 50 % 250}"
        self.address = f"{subnet}.2"
        run("ip", "netns", "add", self.name)
        try:
            self._lay(subnet)
        except BaseException:
            self.close()
            raise

    def _lay(self, subnet):
        run("ip", "link", "add", self._near, "type", "veth", "peer", "name", "far", "netns", self.name)
        run("ip", "address", "add", f"{subnet}.1/24", "dev", self._near)
        run("ip", "link", "set", self._near, "up")
        self._inside("ip", "address", "add", f"{self.address}/24", "dev", "far")
        for device in ("far", "lo"):
            self._inside("ip", "link", "set", device, "up")
        self._inside("nft", "add table inet attnd")
        for hook in ("input", "output"):
            self._inside("nft", f"add chain inet attnd {hook} {{ type filter hook {hook} priority 0 ; }}")

    def _inside(self, *words):
        run("ip", "netns", "exec", self.name, *words)

    def rule(self, rule):
        """In both directions, instead of what was there."""
        self._inside("nft", "flush table inet attnd")
        for hook in ("input", "output"):
            if rule:
                self._inside("nft", f"add rule inet attnd {hook} {rule}")

    def server(self, *flags):
        namespace = os.open(f"/run/netns/{self.name}", os.O_RDONLY)
        setns = ctypes.CDLL(None, use_errno=True).setns

        def enter():
            if setns(namespace, CLONE_NEWNET) != 0:
                raise OSError(ctypes.get_errno(), "setns")

        try:
            return AttndServer("--insecure", *flags, listen=f"{self.address}:0", preexec=enter)
        finally:
            os.close(namespace)

    def close(self):
        with contextlib.suppress(subprocess.SubprocessError):
            run("ip", "link", "del", self._near)
        run("ip", "netns", "del", self.name)


@pytest.fixture
def line():
    made = Line()
    try:
        yield made
    finally:
        made.close()


@pytest.mark.parametrize("percent", [1, 10])
def test_packets_are_lost(line, percent):
    """They are sent again, and every answer is right."""
    with line.server() as server:
        request = random_request(2, 200, 32)
        right = wire.attend(server.stub(), request).raw
        # In turn and not at random: of what is sent again and again, something always comes through.
        line.rule(f"numgen inc mod {100 // percent} 0 drop")
        for call in wire.CALLS.values():
            for _ in range(3):
                assert call(server.stub(), request).raw == right
        line.rule(None)
        good_call(server)


def test_a_line_that_is_cut_and_comes_back_in_time(line):
    """Nobody noticed: the calls of that moment are answered."""
    with line.server() as server:
        request, answers = random_request(2, 200, 32), []
        right = wire.attend(server.stub(), request).raw
        stub = server.stub()
        good_call(server)
        line.rule("tcp dport 1-65535 drop")
        caller = threading.Thread(target=lambda: answers.append(wire.attend(stub, request).raw))
        caller.start()
        caller.join(0.5)
        assert not answers
        line.rule(None)
        caller.join()
        assert answers == [right]


@pytest.mark.parametrize(
    "rule", ["tcp dport 1-65535 drop", "meta l4proto tcp reject with tcp reset"], ids=["cut", "reset"]
)
def test_a_line_that_stays_cut(line, rule):
    """The server lets go of the work and the connection by its own pings, and answers when the line is back."""
    with line.server("--peer_silence_ms=1000", "--compute_ms_max=3600000") as server:
        good_call(server)
        server.close_channels()
        descriptors = idle_descriptors(server)
        stub = server.stub()
        call = stub.Attend.future(endless_request(), timeout=CALL_SECONDS_MAX)
        eventually("it computes", lambda: server.descriptors() > descriptors and memory_reserved(server) > 0)
        line.rule(rule)
        eventually("it lets go of the connection", lambda: server.descriptors() <= descriptors)
        eventually("nothing computes", lambda: computes_little(server))
        line.rule(None)
        call.cancel()
        server.close_channels()
        eventually("it answers", lambda: is_served(server))
        eventually("nothing is reserved", lambda: memory_reserved(server) == 0)


def idle_descriptors(server):
    """The fewest within two seconds: connections that were closed are gone by then."""
    counts = []
    for _ in range(20):
        threading.Event().wait(0.1)
        counts.append(server.descriptors())
    return min(counts)


def computes_little(server):
    """Half a second of two cores at work would be twice as much, or more."""
    spent = server.cpu_seconds()
    threading.Event().wait(0.5)
    return server.cpu_seconds() - spent < 0.3
