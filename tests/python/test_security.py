"""TLS, mutual TLS and tokens: who is let in, and what never travels in plaintext."""

import hashlib
import json
import socket

import numpy as np
import pytest

import attnd
from attnd_server import AttndServer
from certificates import Authority

Q = np.ones((4, 8), np.float32)
TOKEN = "a-token-of-this-test"


@pytest.fixture(scope="module")
def pki(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pki")
    ours, others = Authority(folder / "ours"), Authority(folder / "others")
    return {
        "server": ours.issue(folder / "server", "server", "DNS:localhost,IP:127.0.0.1"),
        "client": ours.issue(folder / "client", "client"),
        "stranger": others.issue(folder / "stranger", "stranger"),
    }


@pytest.fixture(scope="module")
def guarded(pki, tmp_path_factory):
    """TLS with certificates of clients, and a token's identity that may only ask what a call costs."""
    auth = tmp_path_factory.mktemp("auth") / "auth.json"
    auth.write_text(
        json.dumps(
            {
                "identities": [
                    {"name": "client", "certificates": ["client"], "methods": ["*"]},
                    {
                        "name": "planner",
                        "tokens_sha256": [hashlib.sha256(TOKEN.encode()).hexdigest()],
                        "methods": ["attnd.v1.AttentionService/Plan"],
                    },
                ]
            }
        )
    )
    folder = pki["server"]
    with AttndServer(
        f"--tls_certificate={folder}/tls.crt", f"--tls_key={folder}/tls.key", f"--auth_file={auth}"
    ) as server:
        yield server


@pytest.fixture(scope="module")
def mutual(pki):
    folder = pki["server"]
    with AttndServer(
        f"--tls_certificate={folder}/tls.crt", f"--tls_key={folder}/tls.key", f"--tls_client_ca={folder}/ca.crt"
    ) as server:
        yield server


def pair(folder):
    return {"tls_certificate": folder / "tls.crt", "tls_key": str(folder / "tls.key")}


def test_mutual_tls_by_files_and_by_bytes(mutual, pki):
    files = {"tls_ca": pki["server"] / "ca.crt", **pair(pki["client"])}
    contents = {
        name: (path if hasattr(path, "read_bytes") else type(pki["server"])(path)).read_bytes()
        for name, path in files.items()
    }
    for security in (files, contents):
        with attnd.connect(mutual.address, **security) as client:
            assert client.attend(Q, Q, Q).output.shape == (4, 8)


def test_whose_certificate_is_not_theirs(mutual, pki):
    ca = pki["server"] / "ca.crt"
    for security in (
        {"tls_ca": ca},  # none
        {"tls_ca": ca, **pair(pki["stranger"])},
        {"tls_ca": pki["stranger"] / "ca.crt", **pair(pki["client"])},
        {"tls_ca": ca, "tls_server_name": "elsewhere", **pair(pki["client"])},
        {},  # plaintext
    ):
        with attnd.connect(mutual.address, attempts=1, **security) as client:
            with pytest.raises(attnd.Unavailable):
                client.info(timeout=20)


def test_tokens(guarded, pki, tmp_path):
    ca = {"tls_ca": pki["server"] / "ca.crt"}
    (tmp_path / "token").write_text(f"{TOKEN}\n")
    for token in ({"token": TOKEN}, {"token_file": tmp_path / "token"}):
        with attnd.connect(guarded.address, **ca, **token) as client:
            assert client.plan(Q, Q, Q).admitted
            with pytest.raises(attnd.PermissionDenied):
                client.attend(Q, Q, Q)
            with pytest.raises(attnd.PermissionDenied):
                client.attend(Q, Q, Q, stream=True)
    with attnd.connect(guarded.address, **ca, token="another") as client:
        with pytest.raises(attnd.Unauthenticated):
            client.attend(Q, Q, Q)


def test_a_token_does_not_travel_in_plaintext():
    for target in ("attnd.example:50051", "ipv4:127.0.0.1:1,10.0.0.1:1", "dns://127.0.0.1/localhost:1", "10.0.0.1:1"):
        with pytest.raises(attnd.FailedPrecondition, match="without TLS") as caught:
            attnd.connect(target, token=TOKEN)
        assert TOKEN not in str(caught.value)
        attnd.connect(target, token=TOKEN, tls=True).close()
        attnd.connect(target, token=TOKEN, allow_plaintext_token=True).close()
    for target in ("localhost:1", "127.0.0.1:1", "[::1]:1", "unix:/tmp/socket", "dns:///localhost:1", "ipv6:[::1]:1"):
        attnd.connect(target, token=TOKEN).close()


def test_what_cannot_be_read_or_is_something_else(pki, tmp_path):
    crt = pki["client"] / "tls.crt"
    with pytest.raises(attnd.NotFound, match="tls_ca: .*nowhere.pem"):
        attnd.connect("localhost:1", tls_ca=tmp_path / "nowhere.pem")
    with pytest.raises(attnd.NotFound, match="token_file"):
        attnd.connect("localhost:1", token_file=tmp_path / "nowhere")
    (tmp_path / "no.pem").write_text("something else")
    for security, words in (
        ({"tls_ca": tmp_path / "no.pem"}, "no.pem: expected PEM"),
        ({"tls_certificate": crt}, "tls_certificate and tls_key: one without the other"),
        ({"token": "two words"}, "token: expected one line"),
        ({"token": ""}, "token: expected one line"),
        ({"token": "a", "token_file": crt}, "token and token_file"),
    ):
        with pytest.raises(attnd.InvalidArgument, match=words):
            attnd.connect("localhost:1", **security)


def test_no_proxy_of_the_environment_stands_between_a_client_and_its_own_machine(server, monkeypatch):
    """It would read the token."""
    with socket.socket() as proxy:
        proxy.bind(("127.0.0.1", 0))
        proxy.listen()
        proxy.settimeout(0)
        for name in ("grpc_proxy", "http_proxy", "https_proxy"):
            monkeypatch.setenv(name, f"http://127.0.0.1:{proxy.getsockname()[1]}")
        for name in ("no_grpc_proxy", "no_proxy"):
            monkeypatch.delenv(name, raising=False)
        with attnd.connect(server.address, token="a-token") as client:
            assert client.attend(Q, Q, Q).output.shape == (4, 8)
        with pytest.raises(BlockingIOError):  # nobody came
            proxy.accept()
