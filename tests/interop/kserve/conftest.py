"""Shared by these tests: stubs of their own, since others may have closed the session's."""

import pytest

import infer_wire


@pytest.fixture(scope="module")
def stub(server):
    return server.stub()


@pytest.fixture(scope="module")
def infer(server):
    return infer_wire.stub_of(server)
