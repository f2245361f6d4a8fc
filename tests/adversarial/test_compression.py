"""A gzip bomb: no compressed message is unpacked, whatever it says of itself."""

import functools
import gzip
import zlib

import grpc
import pytest

from aftermath import random_request
from attnd_server import AttndServer
from h2_peer import H2Peer, data_frames, prefixed
from survival import survives

MIB = 1 << 20
UNPACKED_BYTES = 48 * MIB  # from 48 KiB, which one window holds: the whole bomb is delivered


@functools.lru_cache
def bomb(encoding):
    packer = zlib.compressobj(9, zlib.DEFLATED, 31 if encoding == "gzip" else 15)
    part = bytes(4 * MIB)
    return b"".join(packer.compress(part) for _ in range(UNPACKED_BYTES // len(part))) + packer.flush()


@pytest.mark.parametrize("method", ["Attend", "AttendStream", "Plan", "Info"])
@pytest.mark.parametrize("encoding", ["gzip", "deflate"])
def test_a_bomb(server, encoding, method):
    packed = bomb(encoding)
    with survives(server, f"{encoding} bomb for {method}", 2000, 16 * MIB), H2Peer(server) as peer:
        stream, head = peer.headers(method, ("grpc-encoding", encoding))
        peer.send(head, *data_frames(stream, prefixed(packed, compressed=1), end_stream=True))
        assert peer.outcome(stream) == grpc.StatusCode.UNIMPLEMENTED.value[0]


@pytest.mark.parametrize("encoding", ["gzip", "identity", None, "br", "gzip,gzip", "\xff"])
def test_a_compressed_message_is_refused_whole(server, encoding):
    """Also with no word of how it is compressed, and with words that nobody knows."""
    message = gzip.compress(random_request(1, 4, 4).SerializeToString())
    extra = [] if encoding is None else [("grpc-encoding", encoding)]
    with survives(server, f"grpc-encoding {encoding}", 2000, 16 * MIB), H2Peer(server) as peer:
        stream, head = peer.headers("Attend", *extra)
        peer.send(head, *data_frames(stream, prefixed(message, compressed=1), end_stream=True))
        assert peer.outcome(stream) not in (0, None)


def test_a_client_that_compresses_is_told():
    with AttndServer() as server:
        with pytest.raises(grpc.RpcError) as refused:
            server.stub().Attend(random_request(1, 4, 4), compression=grpc.Compression.Gzip, timeout=60)
        assert refused.value.code() == grpc.StatusCode.UNIMPLEMENTED
