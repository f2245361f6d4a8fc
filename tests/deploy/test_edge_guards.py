"""deploy/envoy: what does not get in, and the exchange of the edge's certificate."""

import contextlib
import socket
import ssl
import subprocess

import grpc
import pytest
from hyperframe.frame import HeadersFrame

from attnd.v1 import attention_pb2 as pb
from attnd.v1 import attention_pb2_grpc
from attnd_server import CALL_SECONDS_MAX, AttndServer, eventually
from certificates import Authority, openssl
from edge import CONFIG, NAME, SERVER_FLAGS, Edge, envoy_binary, mounted_secret
from h2_peer import H2Peer


@pytest.fixture(scope="module")
def edge():
    with AttndServer(*SERVER_FLAGS) as server, Edge([server.port]) as running:
        yield running


def info(channel, **more):
    return attention_pb2_grpc.AttentionServiceStub(channel).Info(pb.InfoRequest(), timeout=CALL_SECONDS_MAX, **more)


def test_envoy_takes_the_configuration_as_it_is(tmp_path):
    """Every file with nothing changed but the folder of certificates; nothing in it is deprecated."""
    authority = Authority(tmp_path)
    authority.issue(tmp_path / "tls", NAME)
    authority.issue(tmp_path / "upstream", "attnd")
    for file in CONFIG.glob("*.yaml"):
        (tmp_path / file.name).write_text(file.read_text().replace("/etc/envoy/", f"{tmp_path}/"))
    checked = subprocess.run(
        [envoy_binary(), "--mode", "validate", "-c", tmp_path / "envoy.yaml"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert checked.returncode == 0, checked.stderr
    assert "eprecated" not in checked.stderr, checked.stderr


def test_no_way_in_without_tls_or_with_the_wrong_authority(edge, tmp_path):
    for channel in (grpc.insecure_channel(edge.address), edge.channel(root=Authority(tmp_path).path)):
        with channel, pytest.raises(grpc.RpcError) as refused:
            info(channel)
        assert refused.value.code() == grpc.StatusCode.UNAVAILABLE
    assert info(edge.channel()).version


@contextlib.contextmanager
def connected(edge, alpn, newest=None):
    """A TLS connection to the edge."""
    context = ssl.create_default_context(cafile=edge.authority.path)
    context.set_alpn_protocols([alpn])
    if newest is not None:
        context.minimum_version = ssl.TLSVersion.TLSv1
        context.maximum_version = newest
    with socket.create_connection(("127.0.0.1", edge.port), timeout=CALL_SECONDS_MAX) as plain:
        with context.wrap_socket(plain, server_hostname=NAME) as secured:
            yield secured


def handshake(edge, alpn, newest=None):
    """(protocol, the edge's certificate) of one handshake."""
    with connected(edge, alpn, newest) as secured:
        return secured.selected_alpn_protocol(), secured.getpeercert()


def test_http2_over_a_current_tls_only(edge):
    assert handshake(edge, "h2")[0] == "h2"
    assert handshake(edge, "http/1.1")[0] is None
    with pytest.warns(DeprecationWarning), pytest.raises(ssl.SSLError):
        handshake(edge, "h2", newest=ssl.TLSVersion.TLSv1_1)


@pytest.mark.parametrize(
    "metadata",
    [[("x-large", "x" * 20000)], [(f"x-{number}", "many") for number in range(80)], [("x_underscored", "name")]],
    ids=["large", "many", "underscored"],
)
def test_headers_are_bounded(edge, metadata):
    with pytest.raises(grpc.RpcError):
        info(edge.channel(), metadata=metadata)
    assert info(edge.channel()).version


@pytest.mark.parametrize("method", ["/attnd.v1.Nothing/Info", "/grpc.reflection.v1alpha.ServerReflection/X", "/stats"])
def test_only_the_service_and_its_health_are_behind_it(edge, method):
    with pytest.raises(grpc.RpcError) as refused:
        edge.channel().unary_unary(method)(b"", timeout=CALL_SECONDS_MAX)
    assert refused.value.code() == grpc.StatusCode.UNIMPLEMENTED


def test_a_caller_too_fast_is_told_and_holds_nobody_else(edge):
    """It asks for what the edge refuses by itself, in frames that are made already: ten times as fast as it may."""
    unimplemented, exhausted = (grpc.StatusCode[name].value[0] for name in ("UNIMPLEMENTED", "RESOURCE_EXHAUSTED"))
    statuses = []
    with connected(edge, "h2") as secured, H2Peer(edge, sock=secured) as peer:

        def block():
            return peer.header_block("/attnd.v1.Nothing/Info", scheme="https", authority=NAME)

        block_bytes = block()  # all of it is in the compression's table from the second one on
        while exhausted not in statuses and len(statuses) < 100_000:
            streams = [peer.new_stream() for _ in range(100)]
            heads = [HeadersFrame(stream, block_bytes, flags=["END_HEADERS", "END_STREAM"]) for stream in streams]
            assert peer.send(*heads)
            assert peer.read_until(lambda: all(peer.calls[stream].over() for stream in streams), CALL_SECONDS_MAX)
            statuses += [peer.calls[stream].grpc_status() for stream in streams]
            block_bytes = block()
        assert info(edge.channel()).version  # on a connection of its own
    assert set(statuses) == {unimplemented, exhausted}
    assert statuses.index(exhausted) >= 2000  # the bucket


def serial(edge):
    return handshake(edge, "h2")[1]["serialNumber"]


def test_a_certificate_is_exchanged_without_a_failed_call():
    with AttndServer(*SERVER_FLAGS) as server, Edge([server.port]) as edge:
        open_before = edge.channel()
        assert info(open_before).version
        old = serial(edge)
        mounted_secret(edge.folder / "tls", lambda folder: edge.authority.issue(folder, NAME))
        eventually("new handshakes get the new one", lambda: serial(edge) != old)
        assert info(open_before).version and info(edge.channel()).version
        # A pair that does not match is not taken.
        new = serial(edge)

        def mismatched(folder):
            edge.authority.issue(folder, NAME)
            openssl("ecparam", "-name", "prime256v1", "-genkey", "-noout", "-out", folder / "tls.key")

        mounted_secret(edge.folder / "tls", mismatched)
        eventually("it was refused", lambda: edge.counter(".*sds.edge_certificate.key_rotation_failed"))
        assert serial(edge) == new and info(edge.channel()).version
