"""SIGTERM under load: each call has exactly one outcome, and the process ends by itself with 0."""

import signal
import threading

import grpc

import wire
from aftermath import computes, good_call, long_request, random_request
from attnd_server import AttndServer, CALL_SECONDS_MAX, eventually, health_pb2

WORKERS = 6


def test_calls_finish_or_are_told():
    with AttndServer() as server:
        good_call(server)
        request, outcomes, stop = random_request(4, 300, 64), [], threading.Event()
        expected = wire.attend(server.stub(), request).raw

        def by_stream(stub, message):
            """A drain may end a stream that has nothing open: what was answered counts."""
            return wire.attend_stream(stub, message, may_end_badly=True)

        def work(call):
            stub = server.stub()
            while not stop.is_set():
                try:
                    outcomes.append("good" if call(stub, request).raw == expected else "wrong bytes")
                except wire.ProblemFailed as failed:
                    outcomes.append(failed.code)
                except grpc.RpcError as failed:
                    outcomes.append(failed.code())

        watched = []

        def watch():
            try:
                for reply in server.health().Watch(health_pb2.HealthCheckRequest(), timeout=CALL_SECONDS_MAX):
                    watched.append(reply.status)
            except grpc.RpcError as ended:
                watched.append(ended.code())

        threads = [threading.Thread(target=work, args=((wire.attend, by_stream)[n % 2],)) for n in range(WORKERS)]
        threads.append(threading.Thread(target=watch))
        for thread in threads:
            thread.start()
        eventually("under load", lambda: outcomes.count("good") >= 3 * WORKERS and watched)
        server.signal(signal.SIGTERM)
        code = server.wait()
        stop.set()
        for thread in threads:
            thread.join(CALL_SECONDS_MAX)
            assert not thread.is_alive()
        assert code == 0
        # gRPC itself ends a call with CANCELLED that arrives in the instant of its shutdown, before the server sees it.
        refused = {grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED}
        assert set(outcomes) <= {"good"} | refused, set(outcomes)
        # All that the server accepted was answered in full, and the callers have it.
        accepted = [line for line in server.log().splitlines() if "Nq300" in line]
        assert len(accepted) - 1 == outcomes.count("good") and all("OK" in line for line in accepted)
        assert watched[:2] == [health_pb2.HealthCheckResponse.SERVING, health_pb2.HealthCheckResponse.NOT_SERVING]


def test_work_that_outlasts_the_drain_is_told():
    with AttndServer("--drain_ms=300") as server:
        with computes(server, 0.1):
            call = server.stub().Attend.future(long_request(8192), timeout=CALL_SECONDS_MAX)
        server.signal(signal.SIGTERM)
        assert server.wait() == 0
        assert call.exception().code() in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED)


def test_a_second_signal_ends_it_at_once():
    server = AttndServer("--drain_ms=600000")  # not in a `with`: its end is no clean one
    try:
        with computes(server, 0.1):
            call = server.stub().Attend.future(long_request(8192), timeout=CALL_SECONDS_MAX)
        server.signal(signal.SIGTERM)
        eventually("it drains", lambda: refuses(server))
        server.signal(signal.SIGTERM)
        assert server.wait() == 1
        assert call.exception() is not None
    finally:
        server.kill()


def refuses(server):
    """A new call during a drain is refused, or finds no listener any more."""
    try:
        wire.attend(server.stub(), random_request(1, 2, 2), timeout=10)
    except grpc.RpcError as refused:
        return refused.code() == grpc.StatusCode.UNAVAILABLE
    return False
