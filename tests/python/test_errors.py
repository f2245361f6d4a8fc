"""What goes wrong keeps its code and the server's words, and is of a kind that can be caught."""

import hashlib
import inspect
import json
import socket

import grpc
import numpy as np
import pytest

import attnd
from attnd_server import AttndServer

Q = np.ones((4, 8), np.float32)
LARGE = np.zeros((1, 100000, 64), np.float32)


def test_each_kind_is_an_error_with_its_own_code():
    kinds = [kind for _, kind in inspect.getmembers(attnd, inspect.isclass) if issubclass(kind, attnd.Error)]
    codes = {kind.code for kind in kinds if kind is not attnd.Error}
    assert len(codes) == len(kinds) - 1 >= 12


def test_the_kinds_python_has_are_theirs_too():
    for kind, pythons in (
        (attnd.InvalidArgument, ValueError),
        (attnd.DeadlineExceeded, TimeoutError),
        (attnd.Unavailable, ConnectionError),
        (attnd.NotFound, LookupError),
        (attnd.PermissionDenied, PermissionError),
        (attnd.Unauthenticated, PermissionError),
    ):
        assert issubclass(kind, pythons)
        assert str(kind("k: shape")) == "k: shape" and kind("words").retry_after_s is None


def test_a_deadline(client):
    for call in (
        lambda: client.attend(LARGE, LARGE, LARGE, timeout=0.05),
        lambda: client.attend(LARGE, LARGE, LARGE, stream=True, timeout=0.05),
    ):
        with pytest.raises(attnd.DeadlineExceeded):
            call()
    assert client.attend(Q, Q, Q).output.shape == (4, 8)


def test_the_client_has_a_timeout_for_calls_that_give_none(server):
    with attnd.connect(server.address, timeout=0.05) as hasty:
        with pytest.raises(attnd.DeadlineExceeded):
            hasty.attend(LARGE, LARGE, LARGE)
        assert hasty.attend(Q, Q, Q, timeout=60).output.shape == (4, 8)


def test_nobody_there():
    with socket.socket() as taken:  # bound, and nobody listens
        taken.bind(("127.0.0.1", 0))
        with attnd.connect(f"127.0.0.1:{taken.getsockname()[1]}") as client:
            with pytest.raises(attnd.Unavailable, match="127.0.0.1") as caught:
                client.info()
    assert caught.value.code == grpc.StatusCode.UNAVAILABLE


def test_what_can_never_fit_names_the_flag_and_no_delay():
    with AttndServer("--compute_ms_max=1") as server, attnd.connect(server.address) as client:
        with pytest.raises(attnd.ResourceExhausted, match="compute_ms_max") as caught:
            client.attend(LARGE, LARGE, LARGE)
        assert caught.value.retry_after_s is None


def test_who_comes_too_often_is_told_when_to_come_again(tmp_path):
    auth = tmp_path / "auth.json"
    digest = hashlib.sha256(b"a-token").hexdigest()
    identity = {"name": "eager", "tokens_sha256": [digest], "methods": ["*"], "requests_per_second": 1}
    auth.write_text(json.dumps({"identities": [identity]}))
    with AttndServer(f"--auth_file={auth}") as server, attnd.connect(server.address, token="a-token") as client:
        delays = []
        for stream in (False, True):
            with pytest.raises(attnd.ResourceExhausted) as caught:
                for _ in range(100):
                    client.attend(Q, Q, Q, stream=stream)
            delays.append(caught.value.retry_after_s)
        assert delays[0] > 0  # a problem of a stream ends with a code and words alone


def test_a_closed_client_says_so(server):
    client = attnd.connect(server.address)
    client.close()
    with pytest.raises(ValueError, match="closed"):
        client.info()


def test_an_option_that_nobody_knows(client):
    with pytest.raises(TypeError, match="unknown option casual"):
        client.attend(Q, Q, Q, casual=True)
    for keyword, value, words in (
        ("layout", "nhd", "layout: 'nhd', expected bhnd or bnhd"),
        ("outputs", ["everything"], "outputs: 'everything', expected output or weights"),
        ("mask", np.ones((4, 4), np.float32), "mask: dtype float32, expected bool"),
        ("q_offset", 0.5, "q_offset: float64, expected integers"),
        ("page_table", np.ones((1, 4), np.float32), "page_table: dtype float32, expected int64"),
    ):
        with pytest.raises(attnd.InvalidArgument, match=words):
            client.attend(Q, Q, Q, **{keyword: value})
