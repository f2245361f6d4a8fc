"""deploy/envoy: the edge and attnd prove to each other who they are, and callers are known by their tokens."""

import hashlib
import json

import grpc
import pytest

import wire
from aftermath import random_request
from attnd_server import AttndServer
from edge import EDGE_NAME, SERVER_FLAGS, Authority, Edge, Named

TOKEN = "of a caller"
IDENTITIES = [
    {"name": "edge", "certificates": [EDGE_NAME], "methods": ["grpc.health.v1.Health/Check"]},
    {
        "name": "caller",
        "tokens_sha256": [hashlib.sha256(TOKEN.encode()).hexdigest()],
        "methods": ["attnd.v1.AttentionService/*"],
    },
]


def as_deployed(folder, authority, name):
    """The server's flags, with a certificate for that name."""
    authority.issue(folder / name, name)
    (folder / "auth.json").write_text(json.dumps({"identities": IDENTITIES}))
    return (
        *SERVER_FLAGS,
        f"--tls_certificate={folder / name / 'tls.crt'}",
        f"--tls_key={folder / name / 'tls.key'}",
        f"--tls_client_ca={authority.path}",
        f"--auth_file={folder / 'auth.json'}",
    )


def outcome(edge, **metadata):
    try:
        wire.attend(Named(edge.stub(), **metadata), random_request(1, 8, 8))
    except grpc.RpcError as failed:
        return failed.code()
    return grpc.StatusCode.OK


def test_callers_are_known_by_their_tokens(tmp_path):
    authority = Authority(tmp_path)
    with AttndServer(*as_deployed(tmp_path, authority, "attnd")) as server:
        with Edge([server.port], upstream=authority) as edge:
            assert outcome(edge, authorization=f"Bearer {TOKEN}") == grpc.StatusCode.OK
            assert outcome(edge, authorization="Bearer another") == grpc.StatusCode.UNAUTHENTICATED
            # Without one a caller comes as the edge, who may only ask for health.
            assert outcome(edge) == grpc.StatusCode.PERMISSION_DENIED
            # Nobody passes the edge by.
            with pytest.raises(grpc.RpcError):
                wire.attend(server.stub(), random_request(1, 8, 8))


def test_a_server_of_another_name_gets_no_calls(tmp_path):
    authority = Authority(tmp_path)
    with (
        AttndServer(*as_deployed(tmp_path, authority, "attnd")) as server,
        AttndServer(*as_deployed(tmp_path, authority, "impostor")) as impostor,
        Edge([server.port, impostor.port], upstream=authority, healthy=1) as edge,
    ):
        for _ in range(30):
            assert outcome(edge, authorization=f"Bearer {TOKEN}") == grpc.StatusCode.OK
        assert edge.healthy() == {server.port}
        assert "problem=" not in impostor.log()
