"""Reflection is off unless a flag turns it on."""

import grpc
import pytest

from aftermath import good_call
from attnd_server import AttndServer, CALL_SECONDS_MAX

LIST_SERVICES = b"\x3a\x00"  # ServerReflectionRequest { list_services: "" }


def services(server):
    """The raw reply to list_services: the names stand in it as they are."""
    method = server.channel().stream_stream("/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo")
    return next(method(iter([LIST_SERVICES]), timeout=CALL_SECONDS_MAX))


def test_off(server):
    with pytest.raises(grpc.RpcError) as caught:
        services(server)
    assert caught.value.code() == grpc.StatusCode.UNIMPLEMENTED
    good_call(server)


def test_on():
    with AttndServer("--reflection") as server:
        names = services(server)
        assert b"attnd.v1.AttentionService" in names and b"grpc.health.v1.Health" in names
        good_call(server)
