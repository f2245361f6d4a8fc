"""attn over mutual TLS with a token against a real server, and what it says where it is not let in."""

import hashlib
import json
import os
import socket
import subprocess

import pytest

from attnd_server import BIN, CALL_SECONDS_MAX, AttndServer
from certificates import Authority

TOKEN = "a-token.of-the-test"
SHAPE = "--shape=1,1,5,4"


@pytest.fixture(scope="module")
def edge(tmp_path_factory):
    """A folder with certificates and tokens, and a server that asks for both."""
    folder = tmp_path_factory.mktemp("edge")
    ours, others = Authority(folder / "ours"), Authority(folder / "others")
    ours.issue(folder / "server", "server", "DNS:attnd.example")
    ours.issue(folder / "me", "me")
    others.issue(folder / "stranger", "stranger")
    (folder / "token").write_text(f"{TOKEN}\n")
    (folder / "wrong").write_text("another-token\n")
    rules = {
        "identities": [
            {
                "name": "platform",
                "tokens_sha256": [hashlib.sha256(TOKEN.encode()).hexdigest()],
                "methods": ["attnd.v1.AttentionService/*", "grpc.health.v1.Health/Check"],
            }
        ]
    }
    (folder / "auth.json").write_text(json.dumps(rules))
    flags = (
        f"--tls_certificate={folder / 'server' / 'tls.crt'}",
        f"--tls_key={folder / 'server' / 'tls.key'}",
        f"--tls_client_ca={folder / 'me' / 'ca.crt'}",
        f"--auth_file={folder / 'auth.json'}",
    )
    with AttndServer(*flags) as server:
        yield folder, server


def attn(server, *arguments, environment=None):
    command = [BIN / "attn", arguments[0], f"--server={server.address}", *map(str, arguments[1:])]
    return subprocess.run(
        command, capture_output=True, text=True, check=False, timeout=CALL_SECONDS_MAX,
        env={**os.environ, **(environment or {})},
    )


def trust(folder, who="me", ca="me", name="attnd.example"):
    return (
        f"--tls_ca={folder / ca / 'ca.crt'}",
        f"--tls_certificate={folder / who / 'tls.crt'}",
        f"--tls_key={folder / who / 'tls.key'}",
        f"--tls_server_name={name}",
    )


@pytest.mark.parametrize(
    "command", [["explain"], ["plan", SHAPE], ["bench", SHAPE, "--duration_s=0.2", "--stream"], ["info"], ["health"]]
)
def test_every_command_is_let_in(edge, command):
    folder, server = edge
    ran = attn(server, *command, *trust(folder), f"--token_file={folder / 'token'}")
    assert ran.returncode == 0, ran.stderr


def test_the_environment_names_the_tokens_file(edge):
    folder, server = edge
    ran = attn(server, "health", *trust(folder), environment={"ATTN_TOKEN_FILE": str(folder / "token")})
    assert ran.returncode == 0, ran.stderr


def test_who_is_not_let_in_is_told_in_one_line(edge):
    folder, server = edge
    token = f"--token_file={folder / 'token'}"
    for flags, words in (
        (trust(folder), "--token_file"),
        ((*trust(folder), f"--token_file={folder / 'wrong'}"), "--token_file"),
        ((*trust(folder, who="stranger"), token), "closed the connection"),
        ((*trust(folder, ca="stranger"), token), "certificate verify failed"),
        ((*trust(folder, name="elsewhere.example"), token), "elsewhere.example is not in peer certificate"),
        ((token,), "closed the connection: it may speak nothing but TLS"),
        (("--tls", token), "certificate verify failed"),
    ):
        ran = attn(server, "health", *flags)
        assert ran.returncode == 1 and words in ran.stderr, ran.stderr
        assert len(ran.stderr.splitlines()) == 1 and TOKEN not in ran.stderr
    assert attn(server, "health", *trust(folder), token).returncode == 0


def test_without_roots_it_says_so(edge):
    _, server = edge
    no_roots = {"GRPC_DEFAULT_SSL_ROOTS_FILE_PATH": "/dev/null", "GRPC_NOT_USE_SYSTEM_SSL_ROOTS": "1"}
    ran = attn(server, "health", "--tls", environment=no_roots)
    assert ran.returncode == 1 and "no root certificates; give a CA" in ran.stderr


def test_a_token_is_not_sent_in_plaintext_to_another_machine(edge):
    """To an address of this machine that is not loopback, where somebody listens who would read it."""
    folder, _ = edge
    with socket.create_server(("0.0.0.0", 0)) as listener:
        target = f"0.0.0.0:{listener.getsockname()[1]}"
        command = [BIN / "attn", "health", f"--server={target}", f"--token_file={folder / 'token'}"]
        ran = subprocess.run(command, capture_output=True, text=True, check=False, timeout=CALL_SECONDS_MAX)
        assert ran.returncode == 2 and "--allow_plaintext_token" in ran.stderr
        listener.setblocking(False)
        with pytest.raises(BlockingIOError):  # nobody came
            listener.accept()
