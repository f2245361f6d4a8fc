"""Frames that cost a peer nothing: PING, SETTINGS, empty DATA, streams opened and reset, a header that never ends.

Each ends with a good call on another connection, made while the flooding connection is still open.
"""

import pytest
from hyperframe import frame as frames

from aftermath import good_call
from attnd_server import AttndServer, eventually
from h2_peer import H2Peer
from survival import survives

FRAMES = 20_000
MIB = 1 << 20


def flood_and_call(server, peer, data, reads=True):
    """All of it, or until the server has had enough and says so; others are served meanwhile."""
    peer.flood(data, reads=reads)
    good_call(server)
    assert peer.pings() or peer.goaway is not None or peer.closed


@pytest.mark.parametrize("reads", [True, False])
@pytest.mark.parametrize(
    "flood",
    [
        frames.PingFrame(0, b"12345678").serialize(),
        frames.SettingsFrame(0).serialize(),
        frames.SettingsFrame(0, settings={frames.SettingsFrame.INITIAL_WINDOW_SIZE: 1}).serialize(),
        frames.WindowUpdateFrame(0, window_increment=1).serialize(),
        frames.PriorityFrame(1, stream_weight=1).serialize(),
        b"\x00\x00\x01\x42\xff\x00\x00\x00\x00?",
    ],
    ids=["ping", "settings", "window_setting", "window_update", "priority", "unknown_type"],
)
def test_control_frames(flood, reads):
    """Whether the peer reads what it is answered or not: answers do not pile up."""
    with AttndServer() as server, survives(server, flood.hex(), FRAMES, 96 * MIB):
        with H2Peer(server) as peer:
            peer.read_until(lambda: peer.heard["SettingsFrame"] > 1)
            flood_and_call(server, peer, flood * FRAMES, reads)


def test_empty_data_frames():
    """Within a call that is never whole; padding and frames without a byte are free of flow control's limits."""
    with AttndServer() as server, survives(server, "empty DATA", FRAMES, 32 * MIB):
        with H2Peer(server) as peer:
            stream, head = peer.headers("Attend")
            peer.send(head)
            flood_and_call(server, peer, frames.DataFrame(stream, b"").serialize() * FRAMES)


def test_data_byte_by_byte():
    """A prefix that claims 16 KiB, its bytes in frames of one: every frame is a slice of its own until all came."""
    with AttndServer() as server, survives(server, "1-byte DATA", FRAMES, 32 * MIB):
        with H2Peer(server) as peer:
            stream, head = peer.headers("Attend")
            peer.send(head, frames.DataFrame(stream, b"\x00\x00\x00\x40\x00"))
            flood_and_call(server, peer, frames.DataFrame(stream, b"\x08").serialize() * 16384)
            assert peer.outcome(stream) not in (0, None)  # 16 KiB of nonsense, or an end to the flood


def test_streams_opened_and_reset():
    """Nothing of a call that was reset before it was read is computed or kept, and who goes on so is cut off.

    The packaged gRPC makes a call of each, 20 KiB, before anybody is asked: for a moment all of them may be there.
    """
    # So many a second may be reset unread or be one too many: the slowest machine takes more.
    with AttndServer("--streams_max=100") as server, survives(server, "rapid reset", 4 * FRAMES, 640 * MIB):
        with H2Peer(server) as peer:
            flood_and_call(server, peer, resets(peer, FRAMES))
            eventually("it is cut off", lambda: not (peer.send(resets(peer, 500)) and peer.pings()) and peer.closed)
        # The line comes after the end of the connection.
        eventually("it is logged", lambda: server.log().count("it opens calls and says nothing") == 1)


def resets(peer, count):
    """So many calls, each opened and reset."""
    parts = []
    for _ in range(count):
        stream, head = peer.headers("Attend")
        parts += [head.serialize(), frames.RstStreamFrame(stream, error_code=8).serialize()]
    return b"".join(parts)


@pytest.mark.parametrize("method", ["Attend", "AttendStream"])
def test_calls_opened_and_left_open(method):
    """The peer confirms no SETTINGS, so that HTTP/2's own bound of its streams never holds; the server's own does."""
    with AttndServer() as server, survives(server, f"open {method}", 4 * FRAMES, 640 * MIB):
        with H2Peer(server, polite=False) as peer:
            peer.flood(b"".join(peer.headers(method)[1].serialize() for _ in range(FRAMES)))
            good_call(server)  # unary and on a stream: one connection has not all places for streams
            eventually("all but two thousand are refused, or it is cut off", lambda: peer.closed or held(peer) <= 2000)


def held(peer):
    """Calls of FRAMES that the server has not ended."""
    peer.pings()
    return FRAMES - sum(call.over() for call in peer.calls.values())


def test_a_header_dribbled():
    """A header of half a MiB in CONTINUATION frames of 64 bytes.

    The packaged gRPC looks at all of a header again with every frame, so what this costs grows with its square: with a
    client certificate required nobody unknown comes so far, and without one an edge must bound it.
    """
    with AttndServer() as server, survives(server, "CONTINUATION", FRAMES, 32 * MIB):
        with H2Peer(server) as peer:
            stream, value_bytes = peer.new_stream(), 1 << 19
            # A literal field without indexing, its name of one byte.
            field = b"\x00\x01x\x7f" + varint(value_bytes - 127) + b"v" * value_bytes
            parts = [field[at : at + 64] for at in range(0, len(field), 64)]
            peer.send(frames.HeadersFrame(stream, peer.header_block("Attend"), flags=["END_STREAM"]))
            peer.flood(b"".join(frames.ContinuationFrame(stream, part).serialize() for part in parts))
            good_call(server)
            peer.send(frames.ContinuationFrame(stream, b"", flags=["END_HEADERS"]))
            assert peer.outcome(stream) not in (0, None)


def varint(number):
    out = b""
    while number >= 128:
        out, number = out + bytes([number & 127 | 128]), number >> 7
    return out + bytes([number])
