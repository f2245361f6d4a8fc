"""What /metrics says is what was sent: by method, status, bytes, FLOPs and tiles."""

import queue

import grpc
import pytest

import wire
from aftermath import computes, good_call, leaves_nothing, long_request, random_request
from attnd.v1 import attention_pb2 as pb
from attnd_server import AttndServer, CALL_SECONDS_MAX, eventually
from prometheus_page import Page, promtool


@pytest.fixture
def server():
    # Without calls of its own, which would be counted too.
    with AttndServer("--self_probe_ms=0", admin=True) as running:
        yield running


def ended(server, **labels):
    """Requests that ended so far: counted a moment after the caller has the answer."""
    return Page(server).sum("attnd_requests_total", **labels)


def test_promtool_finds_nothing_to_improve(server):
    promtool("check", "metrics", text=Page(server).text)
    good_call(server)
    with pytest.raises(grpc.RpcError):
        wire.attend(server.stub(), pb.AttendRequest())
    server.admin("/readyz")
    eventually("all are counted", lambda: ended(server) >= 3)
    promtool("check", "metrics", text=Page(server).text)


def test_requests_and_bytes(server):
    requests = [random_request(2, rows, 32) for rows in (5, 40, 300)]
    replies = [server.stub().Attend(request, timeout=CALL_SECONDS_MAX) for request in requests]
    for _ in range(2):
        with pytest.raises(grpc.RpcError):
            wire.attend(server.stub(), pb.AttendRequest())
    wire.attend_stream(server.stub(), requests[1])
    server.stub().Info(pb.InfoRequest(), timeout=CALL_SECONDS_MAX)
    eventually("all are counted", lambda: ended(server) >= 7)
    page = Page(server)
    assert page.sum("attnd_requests_total", method="Attend", code="OK") == 3
    assert page.sum("attnd_requests_total", method="Attend", code="INVALID_ARGUMENT") == 2
    assert page.sum("attnd_requests_total", method="AttendStream", code="OK") == 1
    assert page.sum("attnd_requests_total", method="Info", code="OK") == 1
    assert page.sum("attnd_requests_total") == page.sum("attnd_requests_total", identity_class="anonymous") == 7
    sent = sum(request.ByteSize() for request in requests)
    got = sum(reply.ByteSize() for reply in replies)
    assert page.sum("attnd_request_size_bytes_sum", method="Attend") == sent
    assert page.sum("attnd_reply_size_bytes_sum", method="Attend") == got
    for stage in ("receive", "queue", "compute", "send"):
        for method, answered in (("Attend", 3), ("AttendStream", 1)):
            labels = {"method": method, "stage": stage}
            assert page.sum("attnd_request_stage_duration_seconds_count", **labels) == answered
    assert page.sum("attnd_request_duration_seconds_count", method="Attend") == 5
    # 4 * heads * rows * keys * width, both products.
    flops = [4 * 2 * rows * rows * 32 for rows in (5, 40, 300)]
    assert page.sum("attnd_problem_flops_sum", method="Attend") == sum(flops)
    assert page.sum("attnd_compute_flops_total") == sum(flops) + flops[1]
    # Tiles have 128 rows and 256 keys.
    assert page.sum("attnd_compute_tiles_total", outcome="run") == 2 * (1 + 1 + 3 * 2) + 2
    assert page.sum("attnd_compute_tiles_total", outcome="cancelled") == 0
    assert page.sum("attnd_compute_cpu_seconds_total") > 0
    assert page.sum("attnd_build_info") == 1


def test_a_cancelled_problem(server):
    # Long enough on any machine: 2e12 FLOPs.
    whole = pb.AttendRequest()
    whole.CopyFrom(random_request(1, 8192, 64))
    rows = 8192
    with computes(server, 0.1):
        call = server.stub().Attend.future(long_request(16384), timeout=CALL_SECONDS_MAX)
    page = Page(server)
    assert page.sum("attnd_requests_in_flight", method="Attend") == 1
    assert page.sum("attnd_memory_used_bytes") > 0
    assert page.sum("attnd_queue_problems") == page.sum("attnd_compute_jobs") == 1
    assert page.sum("attnd_compute_units") > 0
    call.cancel()
    eventually("it is counted", lambda: ended(server, code="CANCELLED") == 1)
    tiled = server.stub().Attend.future(whole, timeout=CALL_SECONDS_MAX)
    tiled.result()
    eventually("it is counted", lambda: ended(server, code="OK") == 1)
    under_way = ("requests_in_flight", "memory_used_bytes", "queue_problems", "compute_jobs", "compute_units")
    eventually("none is under way", lambda: not any(map(Page(server).sum, (f"attnd_{name}" for name in under_way))))
    page = Page(server)
    assert page.sum("attnd_compute_given_back_seconds_total") > 0
    assert page.sum("attnd_compute_flops_total") > 4 * rows * rows * 64  # a part of the one, all of the other
    assert page.sum("attnd_compute_flops_total") < 4 * rows * rows * 64 + 4 * 16384**2 * 64
    info = server.stub().Info(pb.InfoRequest(), timeout=CALL_SECONDS_MAX)
    given_back = page.sum("attnd_compute_given_back_seconds_total")
    assert given_back == pytest.approx(info.compute_given_back_us / 1e6, abs=1e-5)
    # What it reached is a share of the peak of its own machine.
    assert page.sum("attnd_compute_peak_ratio_count") == 1
    assert page.sum("attnd_compute_peak_ratio_sum") > 0


def test_tiles_of_a_cancelled_problem():
    """One thread and a long row of tiles: what was not run is counted as cancelled, and nothing as skipped."""
    with AttndServer("--threads=1", "--self_probe_ms=0", admin=True) as server:
        rows, heads = 4096, 64
        call = server.stub().Attend.future(random_request(heads, rows, 16), timeout=CALL_SECONDS_MAX)
        eventually("it computes", lambda: Page(server).sum("attnd_compute_units") > 0)
        call.cancel()
        eventually("it is counted", lambda: ended(server) == 1)
        page = Page(server)
        if page.sum("attnd_requests_total", code="CANCELLED") == 1:
            assert page.sum("attnd_compute_tiles_total", outcome="cancelled") > 0
        total = heads * (rows // 128) * (rows // 256)
        assert page.sum("attnd_compute_tiles_total") == total
        good_call(server)


def test_refusals_and_connections():
    flags = ("--memory_bytes_max=150000000", "--connections_max=8", "--self_probe_ms=0")
    with AttndServer(*flags, admin=True) as server:
        with leaves_nothing(server):
            sent = queue.SimpleQueue()
            large = random_request(1, 2048, 1024)  # 40 MB with what it needs, and there are 64
            sent.put(next(wire.stream_messages(1, large)))
            replies = server.stub().AttendStream(iter(sent.get, None), timeout=CALL_SECONDS_MAX)
            eventually("it is reserved", lambda: Page(server).sum("attnd_memory_used_bytes") > 0)
            with pytest.raises(grpc.RpcError) as refused:
                wire.attend(server.stub(), large)
            assert refused.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
            replies.cancel()
            sent.put(None)
        eventually("connections are closed", lambda: Page(server).sum("attnd_connections_open") == 0)
        page = Page(server)
        assert page.sum("attnd_memory_refusals_total") == 1
        assert page.sum("attnd_memory_allowed_bytes") < 150000000
        accepted, used = (page.sum(f"attnd_connections_{what}_total") for what in ("accepted", "used"))
        assert page.sum("attnd_connections_refused_total") == 0
        channels = [server.channel() for _ in range(9)]
        for channel in channels:
            channel.subscribe(lambda _: None, try_to_connect=True)
        eventually("eight are open", lambda: Page(server).sum("attnd_connections_open") == 8)
        eventually("one is not", lambda: Page(server).sum("attnd_connections_refused_total", reason="limit") >= 1)
        assert Page(server).sum("attnd_connections_accepted_total") == accepted + 8
        server.close_channels()
        eventually("none is open", lambda: Page(server).sum("attnd_connections_open") == 0)
        assert Page(server).sum("attnd_connections_used_total") == used  # no call came on these
        good_call(server)
        assert Page(server).sum("attnd_connections_used_total") == used + 1  # two calls on one
