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
        with attnd.connect(f"127.0.0.1:{taken.getsockname()[1]}", attempts=2) as client:
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
    with (
        AttndServer(f"--auth_file={auth}") as server,
        attnd.connect(server.address, token="a-token", attempts=1) as client,
    ):
        delays = []
        for stream in (False, True):
            with pytest.raises(attnd.ResourceExhausted) as caught:
                for _ in range(100):
                    client.attend(Q, Q, Q, stream=stream)
            delays.append(caught.value.retry_after_s)
        assert delays[0] > 0  # a problem of a stream ends with a code and words alone


def test_a_closed_client_says_so(server):
    client = attnd.connect(server.address)
    assert repr(client) == f"<attnd.Client of {server.address}>"
    client.close()
    for call in (client.info, lambda: client.attend_stream(Q, Q, Q)):
        with pytest.raises(attnd.FailedPrecondition, match="the client is closed"):
            call()
    assert repr(client) == f"<attnd.Client of {server.address}, closed>"


def test_timeouts(client):
    for wrong in ("1", float("nan"), True, [1]):
        with pytest.raises(attnd.InvalidArgument, match="timeout: .*expected seconds"):
            client.attend(Q, Q, Q, timeout=wrong)
    for none_left in (0, -1, np.float32(-0.5)):
        with pytest.raises(attnd.DeadlineExceeded, match="no time left"):
            client.attend(Q, Q, Q, timeout=none_left)
    for long in (float("inf"), 10**12, np.float32(3600)):
        assert client.attend(Q, Q, Q, timeout=long).output.shape == (4, 8)


def test_targets_that_are_none():
    for wrong in ("", None, 50051):
        with pytest.raises(attnd.InvalidArgument, match="target: .*expected host:port"):
            attnd.connect(wrong)


def test_an_option_that_nobody_knows(client):
    with pytest.raises(TypeError, match="unknown option casual"):
        client.attend(Q, Q, Q, casual=True)
    for keyword, value, words in (
        ("layout", "nhd", "layout: 'nhd', expected bhnd or bnhd"),
        ("outputs", ["everything"], "outputs: 'everything', expected output or weights"),
        ("mask", np.ones((4, 4), np.float32), "mask: dtype float32, expected bool"),
        ("q_offset", 0.5, "q_offset: dtype float32, expected integers"),
        ("page_table", np.ones((1, 4), np.float32), "page_table: dtype float32, expected int64"),
        ("window_left", 2.5, "window_left: 2.5: "),
        ("scale", "1", "scale: '1': "),
        ("alibi_slopes", "steep", "alibi_slopes: "),
        ("output_dtype", "int64", "output_dtype: 'int64', expected float32 or float16 or bfloat16 or float64"),
        ("rotary", {"rotary_dim": 4}, "rotary: dict, expected attnd.Rotary"),
        ("projection", {"q_heads": 4}, "projection: dict, expected attnd.Projection"),
        ("weight_set", 4, r"weight_set: 4, expected its name, or \(name, version\)"),
        ("weight_set", ("layer", "1"), "weight_set: '1': "),
    ):
        with pytest.raises(attnd.InvalidArgument, match=words):
            client.attend(Q, Q, Q, **{keyword: value})
    with pytest.raises(attnd.InvalidArgument, match="capacity: 'all': "):
        client.put_tensor("t", Q, append_axis=0, capacity="all")
    with pytest.raises(attnd.InvalidArgument, match="Stored: 3, expected a tensor's name"):
        attnd.Stored(3)
