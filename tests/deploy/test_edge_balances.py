"""deploy/envoy with the real Envoy before three servers: who gets how much, and what happens when servers come and go."""

import collections
import contextlib
import signal

import grpc
import pytest

import wire
from aftermath import good_call, long_request, random_request
from attnd_server import AttndServer, CALL_SECONDS_MAX, eventually
from edge import SERVER_FLAGS, Load, servers_with_an_edge


@pytest.fixture()
def fleet():
    with servers_with_an_edge() as both:
        yield both


def answered(server):
    """Problems that it computed, by its log."""
    return sum('status="OK"' in line and "problem=" in line for line in server.log().splitlines())


def port_of(line):
    return int(line["server"].rpartition(":")[2])


def test_every_server_gets_its_share(fleet):
    servers, edge = fleet
    request, calls = random_request(1, 8, 8), 300
    stub = edge.stub()  # one connection: calls are balanced, not connections
    for kind in (wire.attend, wire.attend_stream):
        before = [answered(server) for server in servers]
        expected = kind(servers[0].stub(), request).raw
        before[0] += 1
        for _ in range(calls):
            assert kind(stub, request).raw == expected
        eventually("all are in the logs", lambda: sum(map(answered, servers)) - sum(before) == calls)
        share = [answered(server) - old for server, old in zip(servers, before)]
        print(f"{kind.__name__}: {share} of {calls}")
        # A fair choice among three misses a fifth once in 10^8 runs.
        assert min(share) >= calls / 5, share


def test_one_is_killed_under_load(fleet):
    servers, edge = fleet
    long_ids, long_calls = [], []
    for number in range(3):
        name = f"long-{number}"
        long_ids.append(name)
        metadata = [("x-request-id", name)]
        long_calls.append(edge.stub().Attend.future(long_request(5000), timeout=CALL_SECONDS_MAX, metadata=metadata))
    active = lambda: {port: counters["rq_active"] for port, (_, counters) in edge.hosts().items()}  # noqa: E731
    eventually("long calls are with servers", lambda: sum(active().values()) == 3)
    victim = max(servers, key=lambda server: active()[server.port])
    with Load(edge) as load:
        load.goes_on()
        victim.kill()
        load.goes_on(200)
        eventually("it is left out", lambda: victim.port not in edge.healthy())
        again = AttndServer(*SERVER_FLAGS, listen=victim.address)
        try:
            eventually("it is back", lambda: victim.port in edge.healthy())
            eventually("it gets calls again", lambda: answered(again) > 10)
        finally:
            load.end()
            for call in long_calls:
                call.exception()
            assert again.stop() == 0
    outcomes = dict(load.calls) | {
        name: "good" if call.exception() is None else call.exception().code().name
        for name, call in zip(long_ids, long_calls)
    }
    failed = {name for name, outcome in outcomes.items() if outcome != "good"}
    lines = edge.ended(outcomes)
    # With the victim when it died: its long calls, and what each caller had there. Each of those failed, no other did.
    had = {name for name, line in lines.items() if port_of(line) == victim.port and line["grpc_status"] != "OK"}
    assert failed == had, [(outcomes[name], lines[name]) for name in failed ^ had]
    assert any(name in failed for name in long_ids)
    assert len(failed - set(long_ids)) <= 6, failed  # one call a caller
    assert all("UNAVAILABLE" in outcomes[name] and lines[name]["attempts"] == 1 for name in failed)
    print(f"killed: {len(failed)} of {len(outcomes)} calls failed, all with the victim")
    servers.remove(victim)
    for server in servers:
        good_call(server)


def test_a_rolling_restart_fails_no_call(fleet):
    servers, edge = fleet
    with contextlib.ExitStack() as stack, Load(edge, unary=6, streams=0) as load:
        for old in servers:
            load.goes_on()
            assert old.stop() == 0
            load.goes_on()
            new = stack.enter_context(AttndServer(*SERVER_FLAGS, listen=old.address))
            eventually("the new one gets calls", lambda: new.port in edge.healthy() and answered(new) > 10)
        load.end()
        print(f"rolling restart: {len(load.calls)} calls, {len(load.bad())} failed")
        assert not load.bad(), collections.Counter(load.bad().values())


def test_a_server_that_stands_still_is_left_out(fleet):
    servers, edge = fleet
    still = servers[1]
    with Load(edge) as load:
        load.goes_on()
        still.signal(signal.SIGSTOP)
        try:
            eventually("it is left out", lambda: still.port not in edge.healthy())
            before = edge.hosts()[still.port][1]["rq_total"]
            # Callers whose call is with it wait; a new one's are answered by the others.
            stub = edge.stub()
            for _ in range(100):
                wire.attend(stub, random_request(1, 8, 8))
            assert edge.hosts()[still.port][1]["rq_total"] == before
        finally:
            still.signal(signal.SIGCONT)
        eventually("it is back", lambda: still.port in edge.healthy())
        load.goes_on(200)
        assert edge.hosts()[still.port][1]["rq_total"] > before
        load.end()
    # Only those that it held may have failed: one call a caller at most, if it stood still for longer than a ping may take.
    bad = edge.ended(load.bad())
    assert len(bad) <= 6 and all(port_of(line) == still.port for line in bad.values()), load.bad()


def test_a_server_that_drains_is_left_out(fleet):
    servers, edge = fleet
    leaving = servers[2]
    held = leaving.stub().Attend.future(long_request(5000), timeout=CALL_SECONDS_MAX)
    eventually("it computes", lambda: leaving.cpu_seconds() > 0.3)
    with Load(edge, unary=4, streams=0) as load:
        load.goes_on()
        leaving.signal(signal.SIGTERM)
        eventually("it is left out", lambda: leaving.port not in edge.healthy())
        before = edge.hosts()[leaving.port][1]["rq_total"]
        load.goes_on()
        assert edge.hosts()[leaving.port][1]["rq_total"] == before
        load.end()
        assert not load.bad(), load.bad()
    assert held.exception() is None or held.exception().code() != grpc.StatusCode.UNAVAILABLE
    assert leaving.wait() == 0
