"""SIGSTOP and SIGCONT under load, SIGKILL and a successor: each call has one outcome, and the next ones are right."""

import pathlib
import signal
import socket
import tempfile
import threading

import grpc
import pytest

import wire
from aftermath import good_call, leaves_nothing, random_request
from attnd.v1 import attention_pb2_grpc
from attnd_server import AttndServer, eventually

CALLERS = 4
SOON = ("grpc.max_reconnect_backoff_ms", 500)  # a channel tries again at least so often
PAUSE_SECONDS = 0.02  # after a call that failed, which takes no time where no server is


def watched_stub(server):
    """Of a channel that somebody watches: gRPC goes on with connecting another only every 5 s while its calls fail."""
    channel = server.channel(None, SOON)
    channel.subscribe(lambda _: None)
    return attention_pb2_grpc.AttentionServiceStub(channel)


class Callers:
    """Threads that call again and again; every call's outcome is right bytes, or a code."""

    def __init__(self, server, timeout):
        self.outcomes, self._stop, self._timeout = [], threading.Event(), timeout
        self._request = random_request(4, 200, 64)
        self._right = wire.attend(server.stub(), self._request).raw
        self._threads = [
            threading.Thread(target=self._run, args=(watched_stub(server), list(wire.CALLS.values())[n % 2]))
            for n in range(CALLERS)
        ]

    def _run(self, stub, call):
        while not self._stop.is_set():
            try:
                self.outcomes.append("good" if call(stub, self._request, self._timeout).raw == self._right else "wrong")
            except grpc.RpcError as error:
                self.outcomes.append(error.code())
                self._stop.wait(PAUSE_SECONDS)
            except wire.ProblemFailed as failed:
                self.outcomes.append(failed.code)

    def good(self):
        return self.outcomes.count("good")

    def __enter__(self):
        for thread in self._threads:
            thread.start()
        eventually("under load", lambda: self.good() > 3 * CALLERS)
        return self

    def __exit__(self, *_):
        self._stop.set()
        for thread in self._threads:
            thread.join()


@pytest.mark.parametrize("timeout", [60, 0.5], ids=["patient", "impatient"])
def test_a_process_that_is_stopped_for_a_while(timeout):
    with AttndServer() as server, leaves_nothing(server), Callers(server, timeout) as callers:
        for _ in range(2):
            before = len(callers.outcomes)
            server.signal(signal.SIGSTOP)
            try:
                # Impatient ones come to their end meanwhile, without the server; patient ones wait.
                threading.Event().wait(1.2)
            finally:
                server.signal(signal.SIGCONT)
            eventually("calls go on", lambda: callers.outcomes[before + CALLERS :].count("good") > CALLERS)
        allowed = {"good"} | ({grpc.StatusCode.DEADLINE_EXCEEDED} if timeout < 1 else set())
        assert set(callers.outcomes) <= allowed
        if timeout < 1:
            assert grpc.StatusCode.DEADLINE_EXCEEDED in callers.outcomes


def test_killed_and_followed_by_another():
    """On the same port and the same socket file. Callers see UNAVAILABLE until it is there, and nothing else."""
    with tempfile.TemporaryDirectory(prefix="attnd-test-") as folder:
        path = pathlib.Path(folder) / "socket"
        with socket.create_server(("127.0.0.1", 0)) as probe:
            port = probe.getsockname()[1]
        listen = f"127.0.0.1:{port},unix:{path}"
        first = AttndServer(listen=listen)
        try:
            with Callers(first, 60) as callers:
                first.kill()
                eventually("all are told", lambda: len(callers.outcomes) - callers.good() > 3 * CALLERS)
                assert path.exists()  # it was left behind
                with AttndServer(listen=listen) as second:
                    good, before = callers.good(), len(callers.outcomes)
                    eventually("the same channels are served", lambda: callers.good() > good + 3 * CALLERS, 120)
                    over_unix = attention_pb2_grpc.AttentionServiceStub(second.channel(f"unix:{path}"))
                    assert wire.attend(over_unix, random_request(1, 5, 4))["output"].shape == (1, 1, 5, 4)
                    good_call(second)
                    callers.__exit__()
                    assert before <= len(callers.outcomes)
            assert set(callers.outcomes) == {"good", grpc.StatusCode.UNAVAILABLE}
        finally:
            first.close_channels()
            first.kill()
