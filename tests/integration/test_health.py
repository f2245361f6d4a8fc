"""grpc.health.v1 per service, and the client's exit code for probes."""

import subprocess

import grpc
import pytest

from aftermath import good_call
from attnd_server import BIN, AttndServer, CALL_SECONDS_MAX, health_pb2

SERVING, NOT_SERVING, SERVICE_UNKNOWN = (
    health_pb2.HealthCheckResponse.SERVING,
    health_pb2.HealthCheckResponse.NOT_SERVING,
    health_pb2.HealthCheckResponse.SERVICE_UNKNOWN,
)
SERVICES = ["", "attnd.v1.AttentionService"]


@pytest.mark.parametrize("service", SERVICES)
def test_a_known_service(server, service):
    reply = server.health().Check(health_pb2.HealthCheckRequest(service=service), timeout=CALL_SECONDS_MAX)
    assert reply.status == SERVING
    good_call(server)


def test_an_unknown_service(server):
    with pytest.raises(grpc.RpcError) as caught:
        server.health().Check(health_pb2.HealthCheckRequest(service="nobody\n\x1b[31m"), timeout=CALL_SECONDS_MAX)
    assert caught.value.code() == grpc.StatusCode.NOT_FOUND
    watch = server.health().Watch(health_pb2.HealthCheckRequest(service="nobody"), timeout=CALL_SECONDS_MAX)
    assert next(watch).status == SERVICE_UNKNOWN
    watch.cancel()


@pytest.mark.parametrize("service", SERVICES)
def test_a_drain_ends_a_watch(service):
    with AttndServer() as server:
        watch = server.health().Watch(health_pb2.HealthCheckRequest(service=service), timeout=CALL_SECONDS_MAX)
        assert next(watch).status == SERVING
        server.signal()
        assert next(watch).status == NOT_SERVING
        assert not [reply for reply in ignore_end(watch)]
        assert server.wait() == 0


def ignore_end(replies):
    """What still comes; a stream that the server ended on purpose may say so by its status."""
    try:
        yield from replies
    except grpc.RpcError:
        return


def test_exit_codes_for_probes():
    with AttndServer() as server:

        def probe():
            return subprocess.run(
                [BIN / "attn", "health", f"--server={server.address}"],
                capture_output=True,
                text=True,
                check=False,
                timeout=CALL_SECONDS_MAX,
            )

        assert probe().returncode == 0
        server.stop()
        failed = probe()
        assert failed.returncode not in (0, -6, -11)
        assert len((failed.stdout + failed.stderr).strip().splitlines()) == 1
