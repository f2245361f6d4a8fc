"""TLS and mutual TLS: who is let in, who is not, and certificates exchanged under load without a failed call."""

import os
import shutil
import socket
import ssl
import subprocess
import threading

import grpc
import pytest

from aftermath import good_answer
from attnd.v1 import attention_pb2 as pb
from attnd.v1 import attention_pb2_grpc
from attnd_server import AttndServer, eventually
from certificates import Authority
from prometheus_page import Page

HANG_SECONDS_MAX = 60


@pytest.fixture(scope="module")
def pki(tmp_path_factory):
    """Two authorities and what they issued: server, fresh (another one of the server's), client, expired, stranger."""
    folder = tmp_path_factory.mktemp("pki")
    ours, others = Authority(folder / "ours"), Authority(folder / "others")
    local = "DNS:localhost,IP:127.0.0.1"
    issued = {name: ours.issue(folder / name, name, local) for name in ("server", "fresh")}
    issued["client"] = ours.issue(folder / "client", "client", "URI:spiffe://cluster/client")
    issued["expired"] = ours.issue(folder / "expired", "expired", days=0)
    issued["stranger"] = others.issue(folder / "stranger", "stranger")
    return issued


def replace(source, target):
    """As a careful operator does: no reader sees half a file."""
    shutil.copy(source, f"{target}.new")
    os.replace(f"{target}.new", target)


def live(pki, folder, name="server"):
    """A folder whose pair a server reads, and the flags that say so."""
    for file in ("tls.crt", "tls.key"):
        replace(pki[name] / file, folder / file)
    return [f"--tls_certificate={folder}/tls.crt", f"--tls_key={folder}/tls.key"]


def credentials(pki, client=None):
    """What a client trusts, and the certificate that it shows."""
    pair = [(pki[client] / file).read_bytes() for file in ("tls.key", "tls.crt")] if client else [None, None]
    return grpc.ssl_channel_credentials((pki["server"] / "ca.crt").read_bytes(), *pair)


def stub_at(address, channel_credentials):
    options = [("grpc.use_local_subchannel_pool", 1)]
    if channel_credentials is None:
        return attention_pb2_grpc.AttentionServiceStub(grpc.insecure_channel(address, options))
    return attention_pb2_grpc.AttentionServiceStub(grpc.secure_channel(address, channel_credentials, options))


def refused(stub):
    with pytest.raises(grpc.RpcError) as caught:
        stub.Info(pb.InfoRequest(), timeout=HANG_SECONDS_MAX)
    return caught.value.code() == grpc.StatusCode.UNAVAILABLE


def served_name(port, pki):
    """The common name of the certificate that a new connection is shown."""
    context = ssl.create_default_context(cafile=pki["server"] / "ca.crt")
    context.load_cert_chain(pki["client"] / "tls.crt", pki["client"] / "tls.key")
    context.set_alpn_protocols(["h2"])
    with socket.create_connection(("127.0.0.1", port), timeout=HANG_SECONDS_MAX) as plain:
        with context.wrap_socket(plain, server_hostname="localhost") as tls:
            return dict(entry[0] for entry in tls.getpeercert()["subject"])["commonName"]


def test_tls_needs_no_certificate_of_the_client(pki, tmp_path):
    with AttndServer(*live(pki, tmp_path)) as server:
        good_answer(stub_at(f"localhost:{server.port}", credentials(pki)))
        assert refused(stub_at(server.address, None))
        wrong = grpc.ssl_channel_credentials((pki["stranger"] / "ca.crt").read_bytes())
        assert refused(stub_at(f"localhost:{server.port}", wrong))


def test_mutual_tls_lets_in_whom_the_authority_knows(pki, tmp_path):
    flags = [*live(pki, tmp_path), f"--tls_client_ca={pki['server']}/ca.crt", "--self_probe_ms=200"]
    with AttndServer(*flags, "--log_level=debug") as server:
        address = f"localhost:{server.port}"
        good_answer(stub_at(address, credentials(pki, "client")))
        for nobody in (None, "expired", "stranger"):
            assert refused(stub_at(address, credentials(pki, nobody))), nobody
        assert refused(stub_at(address, None))
        # Without an auth file a caller is named by its certificate. The server's own probe comes in, too.
        eventually("the log names it", lambda: 'identity="spiffe://cluster/client"' in server.log())
        eventually("the self-probe is served", lambda: 'identity="attnd/self-probe"' in server.log())
        assert "self-probe failed" not in server.log()
        good_answer(stub_at(address, credentials(pki, "client")))


def test_half_a_handshake_ends_within_its_time(pki, tmp_path):
    with AttndServer(*live(pki, tmp_path), "--handshake_ms=300") as server:
        before = server.descriptors()
        hello = bytes.fromhex("1603010200010001fc0303") + bytes(40)  # the beginning of a ClientHello
        silent = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(20)]
        for peer in silent[::2]:
            peer.sendall(hello)
        for peer in silent:
            peer.settimeout(HANG_SECONDS_MAX)
            try:
                while peer.recv(4096):
                    pass
            except ConnectionResetError:
                pass
            peer.close()
        eventually("descriptors are back", lambda: server.descriptors() <= before)
        good_answer(stub_at(f"localhost:{server.port}", credentials(pki)))


def test_certificates_change_under_load_without_a_failed_call(pki, tmp_path):
    flags = [*live(pki, tmp_path), f"--tls_client_ca={pki['server']}/ca.crt"]
    with AttndServer(*flags) as server:
        address, failures, calls, done = f"localhost:{server.port}", [], [0], threading.Event()

        def call_on_new_connections():
            while not done.is_set():
                try:
                    good_answer(stub_at(address, credentials(pki, "client")))
                    calls[0] += 1
                except grpc.RpcError as error:
                    failures.append(error)

        callers = [threading.Thread(target=call_on_new_connections) for _ in range(3)]
        for caller in callers:
            caller.start()
        try:
            kept = stub_at(address, credentials(pki, "client"))
            good_answer(kept)
            # A key without its certificate: the old pair goes on, and the log says so.
            replace(pki["fresh"] / "tls.key", tmp_path / "tls.key")
            eventually("the reload is refused", lambda: "certificates not reloaded" in server.log())
            assert served_name(server.port, pki) == "server"
            replace(pki["fresh"] / "tls.crt", tmp_path / "tls.crt")
            eventually("the new pair is served", lambda: served_name(server.port, pki) == "fresh")
            # Gone, and garbage: what was live goes on.
            os.remove(tmp_path / "tls.crt")
            eventually("the loss is noticed", lambda: server.log().count("certificates not reloaded") == 2)
            (tmp_path / "tls.crt").write_text("-----BEGIN CERTIFICATE-----\nbm90IG9uZQ==\n-----END CERTIFICATE-----\n")
            eventually("garbage is refused", lambda: server.log().count("certificates not reloaded") == 3)
            assert served_name(server.port, pki) == "fresh"
            live(pki, tmp_path)
            eventually("the first pair is back", lambda: served_name(server.port, pki) == "server")
            good_answer(kept)  # its connection is still the first
        finally:
            done.set()
            for caller in callers:
                caller.join()
        assert not failures, failures[0]
        assert calls[0] > 0
        log = server.log()
        assert "the private key is not the certificate" in log
        assert log.count("certificates reloaded") == 2


def end_of(certificate):
    """When it expires, in seconds since 1970, by openssl's word."""
    command = ["openssl", "x509", "-noout", "-enddate", "-in", certificate]
    said = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return ssl.cert_time_to_seconds(said.strip().partition("=")[2])


def test_the_metrics_say_when_the_certificate_expires(pki, tmp_path):
    name = "attnd_tls_certificate_expiry_timestamp_seconds"
    with AttndServer(*live(pki, tmp_path), admin=True) as server:
        assert Page(server).sum(name) == end_of(pki["server"] / "tls.crt")
        # Of a chain the first to end.
        long = Authority(tmp_path / "other").issue(tmp_path / "long", "long", days=30)
        with open(long / "tls.crt", "ab") as chain:
            chain.write((pki["server"] / "ca.crt").read_bytes())
        live({"long": long}, tmp_path, "long")
        eventually("it is live", lambda: Page(server).sum("attnd_tls_reloads_total", result="ok") == 1)
        assert Page(server).sum(name) == end_of(pki["server"] / "ca.crt") < end_of(long / "tls.crt")
        # What was not taken says nothing.
        replace(pki["fresh"] / "tls.key", tmp_path / "tls.key")
        eventually("it is refused", lambda: Page(server).sum("attnd_tls_reloads_total", result="failed") > 0)
        assert Page(server).sum(name) == end_of(pki["server"] / "ca.crt")
    with AttndServer(admin=True) as server:
        assert Page(server).sum(name) == 0


def test_a_unix_socket_stays_plain(pki, tmp_path):
    path = tmp_path / "attnd.sock"
    with AttndServer(*live(pki, tmp_path), listen=f"127.0.0.1:0,unix:{path}") as server:
        good_answer(stub_at(f"unix:{path}", None))
        good_answer(stub_at(f"localhost:{server.port}", credentials(pki)))


@pytest.mark.parametrize(
    "make, words",
    [
        (lambda pki, folder: replace(pki["fresh"] / "tls.key", folder / "tls.key"), "not the certificate's"),
        (lambda pki, folder: os.remove(folder / "tls.key"), "tls.key: No such file or directory"),
        (lambda pki, folder: (folder / "tls.crt").write_text("hello"), "certificate: none in PEM"),
        (lambda pki, folder: live(pki, folder, "expired"), "certificate: expired"),
    ],
)
def test_what_cannot_serve_does_not_start(pki, tmp_path, make, words):
    flags = live(pki, tmp_path)
    make(pki, tmp_path)
    with pytest.raises(RuntimeError) as caught:
        AttndServer(*flags)
    assert "--tls_certificate" in str(caught.value) and words in str(caught.value)
