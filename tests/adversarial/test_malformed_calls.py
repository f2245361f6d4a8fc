"""Calls that are no calls: unknown methods, other content types, too much metadata, headers out of any order."""

import pytest
from hyperframe import frame as frames

from attnd_server import AttndServer
from h2_peer import FRAME_BYTES_MAX, H2Peer, data_frames, prefixed
from survival import survives

MIB = 1 << 20


def ends_badly(server, path, *extra, body=b"", **replaced):
    with survives(server, f"{path!r}", 2000, 16 * MIB), H2Peer(server) as peer:
        stream, head = peer.headers(path, *extra, **replaced)
        peer.send(head, *data_frames(stream, prefixed(body), end_stream=True))
        outcome = peer.outcome(stream)
        assert outcome not in (0, None)
        return outcome


@pytest.mark.parametrize(
    "path",
    [
        "/attnd.v1.AttentionService/Nothing",
        "/attnd.v1.AttentionService/attend",
        "/attnd.v1.AttentionService/Attend/",
        "//attnd.v1.AttentionService/Attend",
        "/attnd.v1.AttentionService",
        "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo",
        "/grpc.channelz.v1.Channelz/GetServers",
        "/",
        "/" + "x" * 4000,
        "/../../etc/passwd",
        "/%2e%2e/\x00",
        "/\u00e9\u00ff/" + "\udcff",
    ],
    ids=lambda path: f"{path[:24]!r}",
)
def test_an_unknown_method(server, path):
    """UNIMPLEMENTED, or no call at all where the path is none."""
    path = path.encode(errors="surrogateescape").decode("latin1") if "\udcff" in path else path
    assert ends_badly(server, path) in (12, 13, "reset", "goaway", "closed")


@pytest.mark.parametrize("kind", ["text/html", "application/json", "application/grpcx", "", None, "x" * 5000])
def test_another_content_type(server, kind):
    """gRPC may take it for a call of its own kind; an empty problem then is refused as every empty problem is."""
    ends_badly(server, "Attend", content_type=kind)


@pytest.mark.parametrize("method", ["GET", "PUT", "CONNECT", "PATCH", "", "\x00"])
def test_another_http_method(server, method):
    ends_badly(server, "Attend", method=method)


@pytest.mark.parametrize("te", ["gzip", "", None, "trailers, trailers"])
def test_another_te(server, te):
    ends_badly(server, "Attend", te=te)


@pytest.mark.parametrize(
    "timeout", ["0n", "1n", "99999999999H", "-1S", "S", "1", "1.5S", "\u00b2S", "18446744073709551616n"]
)
def test_a_strange_timeout(server, timeout):
    """None of them gives a call for ever, nor an error of the server."""
    outcome = ends_badly(server, "Attend", ("grpc-timeout", timeout))
    assert outcome in (3, 4, 1, 13, "reset", "goaway", "closed")


@pytest.mark.parametrize("bytes_each, count", [(100, 2000), (16000, 1), (10000, 100), (1, 20000)])
def test_oversized_metadata(bytes_each, count):
    """Many times the metadata cap, in one header or in many; others are served."""
    with AttndServer() as server, survives(server, f"{count} headers of {bytes_each}", 40000, 64 * MIB):
        with H2Peer(server) as peer:
            stream = peer.new_stream()
            extra = [(f"x{number}-bin", "A" * bytes_each) for number in range(count)]
            block = peer.header_block("Attend", *extra)
            parts = [block[at : at + FRAME_BYTES_MAX] for at in range(0, len(block), FRAME_BYTES_MAX)]
            sent = [frames.HeadersFrame(stream, parts[0])] + [frames.ContinuationFrame(stream, p) for p in parts[1:]]
            sent[-1].flags.add("END_HEADERS")
            peer.flood(b"".join(frame.serialize() for frame in sent))
            peer.send(*data_frames(stream, prefixed(b""), end_stream=True))
            assert peer.outcome(stream) not in (0, None)


def test_a_table_of_headers_that_grows_and_is_used_a_thousand_times(server):
    """The peer fills HPACK's table with a header of 4000 bytes and names it by its index: each call holds it anew."""
    with survives(server, "HPACK", 20000, 64 * MIB), H2Peer(server) as peer:
        for _ in range(1000):
            stream, head = peer.headers("Info", ("x-much", "v" * 3500))
            peer.send(head, *data_frames(stream, prefixed(b""), end_stream=True))
        assert peer.outcome(stream) is not None


@pytest.mark.parametrize(
    "sent",
    [
        b"\x00\x00\x00\x00\x01\x00\x00\x00\x07",  # END_STREAM on a stream that was never opened
        b"\x00\x00\x04\x08\x00\x00\x00\x00\x00\x00\x00\x00\x00",  # a window that grows by nothing
        b"\x00\x00\x05\x06\x00\x00\x00\x00\x00hello",  # a PING of five bytes
        b"\x00\x00\x05\x04\x00\x00\x00\x00\x00hello",  # SETTINGS of five bytes
        b"\x00\x00\x01\x09\x04\x00\x00\x00\x01\x82",  # CONTINUATION of nothing
        b"\x00\x00\x01\x01\x04\x00\x00\x00\x01\xff",  # HEADERS whose HPACK ends within a number
        b"\x00\x00\x06\x01\x04\x00\x00\x00\x01\xff\xff\xff\xff\xff\x0f",  # an index beyond every table
        b"\x00\x00\x08\x07\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00",  # GOAWAY
        b"\x00\x00\x05\x05\x04\x00\x00\x00\x01\x00\x00\x00\x02\x82",  # PUSH_PROMISE, which clients must not send
        b"\xff" * 64,
    ],
    ids=lambda sent: sent[:9].hex(),
)
def test_frames_that_mean_nothing(server, sent):
    with survives(server, sent.hex(), 2000, 16 * MIB), H2Peer(server) as peer:
        peer.send(sent)
        peer.pings()
