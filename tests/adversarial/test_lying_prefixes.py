"""What a gRPC message's prefix claims against what comes: no memory for a claim, and a lie is the call's end."""

import grpc
import pytest

import wire
from aftermath import good_call, random_request
from attnd_server import AttndServer
from h2_peer import HANG_SECONDS, H2Peer, data_frames, prefixed
from survival import survives

MIB = 1 << 20
METHODS = ["Attend", "AttendStream", "Plan"]
OVER_LIMIT = grpc.StatusCode.RESOURCE_EXHAUSTED.value[0]


def message_for(method):
    request = random_request(1, 8, 4)
    if method == "AttendStream":
        return next(wire.stream_messages(1, request)).SerializeToString()
    return request.SerializeToString()


def is_answered(server, method, *sent):
    """Whether a call whose bytes are `sent` and no more got anything but its end."""
    with H2Peer(server) as peer:
        stream, head = peer.headers(method)
        peer.send(head, *data_frames(stream, b"".join(sent), end_stream=True))
        assert peer.outcome(stream) is not None
        return peer.calls[stream].data_bytes > 0


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(
    "lie", [+1, +1000, 16 * MIB, (1 << 32) - 1], ids=["one_more", "a_thousand_more", "16_MiB", "4_GiB"]
)
def test_a_prefix_that_claims_more_than_comes(server, method, lie):
    with survives(server, f"{method} claims {lie} more", 2000, 16 * MIB):
        message = message_for(method)
        claim = lie if lie > MIB else len(message) + lie
        assert not is_answered(server, method, prefixed(message, length=claim))


@pytest.mark.parametrize("method", METHODS)
def test_a_prefix_that_claims_less_than_comes(server, method):
    """The rest reads as the prefix of a second message, which a unary call does not have."""
    with survives(server, f"{method} claims less", 2000, 16 * MIB):
        message = message_for(method)
        assert not is_answered(server, method, prefixed(message, length=len(message) - 7))


@pytest.mark.parametrize("method", METHODS)
def test_half_a_prefix(server, method):
    with survives(server, f"{method} half a prefix", 2000, 16 * MIB):
        assert not is_answered(server, method, b"\x00\x00\x00")


def test_a_hundred_claims_of_all_that_is_allowed():
    """Each opens a message of message_bytes_max and sends a byte of it: a claim takes no memory."""
    with AttndServer() as server, survives(server, "a hundred claims", 5000, 32 * MIB), H2Peer(server) as peer:
        for _ in range(100):
            stream, head = peer.headers("Attend")
            peer.send(head, *data_frames(stream, prefixed(b"\x0a", length=256 * MIB)))
        assert peer.pings()


@pytest.mark.parametrize("method", METHODS)
def test_a_message_over_the_limit_is_refused(method):
    with AttndServer(f"--message_bytes_max={MIB}") as server, survives(server, f"{method} 2 MiB", 5000, 32 * MIB):
        with H2Peer(server) as peer:
            stream, head = peer.headers(method)
            peer.send(head)
            # The server is not silent: it takes the message, or ends the call.
            peer.send_within_windows(stream, prefixed(b"\x0a" + bytes(2 * MIB)), silent_seconds_max=HANG_SECONDS)
            assert peer.outcome(stream) == OVER_LIMIT


def test_a_message_of_4_GiB():
    """It claims them and sends for as long as it is let: the packaged gRPC looks at a message's size when it is whole.

    What holds it is gRPC's share of memory_bytes_max, here 64 MiB.
    """
    limits = (f"--memory_bytes_max={256 * MIB}", f"--message_bytes_max={16 * MIB}")
    with AttndServer(*limits) as server, survives(server, "4 GiB", 20000, 96 * MIB), H2Peer(server) as peer:
        stream, head = peer.headers("AttendStream")
        peer.send(head)
        sent = peer.send_within_windows(stream, prefixed(bytes(160 * MIB), length=(1 << 32) - 1))
        assert sent < 160 * MIB
        good_call(server)


def test_padding_that_is_longer_than_its_frame(server):
    with survives(server, "padding", 2000, 16 * MIB), H2Peer(server) as peer:
        stream, head = peer.headers("Attend")
        peer.send(head, b"\x00\x00\x04\x00\x08" + stream.to_bytes(4, "big") + b"\xff\x00\x00\x00")
        assert peer.outcome(stream) not in (0, None)


@pytest.mark.parametrize("length", [16385, (1 << 24) - 1])
def test_a_frame_longer_than_the_settings_allow(server, length):
    """By the frame's header alone: the server waits for none of it."""
    with survives(server, "a long frame", 2000, 16 * MIB), H2Peer(server) as peer:
        stream, head = peer.headers("Attend")
        peer.send(head, length.to_bytes(3, "big") + b"\x00\x00" + stream.to_bytes(4, "big"), bytes(1000))
        assert peer.outcome(stream) not in (0, None)


def test_data_beyond_the_window():
    """More than flow control allows, at once: the call or the connection ends, and what was beyond is not kept."""
    with AttndServer() as server, survives(server, "beyond the window", 5000, 32 * MIB), H2Peer(server) as peer:
        stream, head = peer.headers("AttendStream")
        peer.send(head)
        peer.flood(b"".join(f.serialize() for f in data_frames(stream, prefixed(bytes(64 * MIB)))), reads=False)
        assert peer.outcome(stream) is not None  # gRPC may take the broken message for the end of the requests
