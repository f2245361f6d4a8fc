"""deploy/envoy with the real Envoy before three servers: who gets how much, and what happens when they come and go."""

import collections
import contextlib
import signal

import pytest

import wire
from aftermath import computes, good_call, long_request, random_request
from attnd_server import CALL_SECONDS_MAX, eventually
from edge import Load, servers_with_an_edge


HOUR_S = 3600  # the deadline of what is to compute until it is lost or cancelled


@pytest.fixture()
def fleet():
    with servers_with_an_edge() as both:
        yield both


def answered(server):
    """Problems that it computed, by its log."""
    return sum('status="OK"' in line and "problem=" in line for line in server.log().splitlines())


def port_of(line):
    return int(line["server"].rpartition(":")[2])


def calls_of(edge, server):
    """All that the edge has sent it."""
    return edge.hosts()[server.port][1]["rq_total"]


def calls_to(edge, server, meanwhile):
    """How many the edge sends it meanwhile. Envoy's workers hear of a server's health after its admin page says so."""
    before = calls_of(edge, server)
    meanwhile()
    return calls_of(edge, server) - before


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
    long_calls = {}
    for number in range(3):
        metadata = [("x-request-id", f"long-{number}")]
        call = edge.stub().Attend.future(long_request(16384), timeout=HOUR_S, metadata=metadata)
        long_calls[f"long-{number}"] = call

    def active():
        return {port: counters["rq_active"] for port, (_, counters) in edge.hosts().items()}

    eventually("long calls are with servers", lambda: sum(active().values()) == len(long_calls))
    had_long = active()
    victim = max(servers, key=lambda server: had_long[server.port])
    with Load(edge) as load:
        load.goes_on()
        servers.remove(victim)
        victim.kill()
        load.goes_on(200)
        lost = {name for name, call in long_calls.items() if call.done()}
        eventually("it is left out", lambda: victim.port not in edge.healthy())
        servers.append(victim.again())
        eventually("it is back", lambda: victim.port in edge.healthy())
        eventually("it gets calls again", lambda: answered(servers[-1]) > 10)
    outcomes = dict(load.calls)
    failed = set(load.bad())
    lines = edge.ended({*outcomes, *lost})
    # With the victim when it died: its long calls, and what each caller had there. Each of those failed, no other did.
    had = {name for name in outcomes if port_of(lines[name]) == victim.port and lines[name]["grpc_status"] != "OK"}
    assert failed == had, [(outcomes[name], lines[name]) for name in failed ^ had]
    assert all("UNAVAILABLE" in outcomes[name] and lines[name]["attempts"] == 1 for name in failed)
    assert len(failed) <= 6, failed  # one call a caller
    assert len(lost) == had_long[victim.port] > 0
    assert all(port_of(lines[name]) == victim.port for name in lost)
    print(f"killed: {len(failed)} of {len(outcomes)} calls failed and {len(lost)} of 3 long ones, all with the victim")
    for call in long_calls.values():
        call.cancel()
    for server in servers:
        good_call(server)


def test_a_rolling_restart_fails_no_call(fleet):
    servers, edge = fleet
    with contextlib.ExitStack() as stack, Load(edge, unary=6, streams=0) as load:
        for old in servers:
            load.goes_on()
            assert old.stop() == 0
            load.goes_on()
            new = stack.enter_context(old.again())
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
            # Callers whose call is with it wait; a new one's are answered by the others.
            stub = edge.stub()

            def others_answer():
                for _ in range(100):
                    wire.attend(stub, random_request(1, 8, 8))

            eventually("it gets no call", lambda: calls_to(edge, still, others_answer) == 0)
            before = calls_of(edge, still)
        finally:
            still.signal(signal.SIGCONT)
        eventually("it is back", lambda: still.port in edge.healthy())
        load.goes_on(200)
        assert calls_of(edge, still) > before
        load.end()
    # Only those that it held may have failed: one call a caller at most, if it stood still for longer than a ping may
    # take.
    bad = edge.ended(load.bad())
    assert len(bad) <= 6 and all(port_of(line) == still.port for line in bad.values()), load.bad()


def test_a_server_that_drains_is_left_out(fleet):
    servers, edge = fleet
    leaving = servers[2]
    with computes(leaving, 0.1):
        held = leaving.stub().Attend.future(long_request(8192), timeout=CALL_SECONDS_MAX)
    with Load(edge, unary=4, streams=0) as load:
        load.goes_on()
        leaving.signal(signal.SIGTERM)  # it drains for as long as it computes
        eventually("it is left out", lambda: leaving.port not in edge.healthy())
        eventually("it gets no call", lambda: calls_to(edge, leaving, load.goes_on) == 0)
        load.end()
        assert not load.bad(), load.bad()
    held.cancel()
    assert leaving.wait() == 0
