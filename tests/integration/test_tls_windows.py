"""Over TLS a server lets a call send a MiB and 64 KiB at a time and no more, however fast the connection is: a gRPC
client encrypts all that the window takes before it sends any of it.

What would widen it is gRPC's estimate of the connection's bandwidth times its delay, which is measured by PINGs.
"""

import socket
import ssl

import pytest

from attnd_server import CALL_SECONDS_MAX, AttndServer
from certificates import Authority
from h2_peer import H2Peer, data_frames, prefixed

MIB = 1 << 20
WINDOW_BYTES_MAX = MIB + 65535
INVALID_ARGUMENT = 3


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    """Where a server's certificate and its key lie, and the authority's."""
    folder = tmp_path_factory.mktemp("pki")
    return Authority(folder / "authority").issue(folder / "server", "server", "DNS:localhost,IP:127.0.0.1")


def test_the_window_stays_narrow_over_tls(pair):
    with AttndServer(f"--tls_certificate={pair}/tls.crt", f"--tls_key={pair}/tls.key") as server:
        context = ssl.create_default_context(cafile=pair / "ca.crt")
        context.set_alpn_protocols(["h2"])
        plain = socket.create_connection(("127.0.0.1", server.port), timeout=CALL_SECONDS_MAX)
        with H2Peer(server, sock=context.wrap_socket(plain, server_hostname="localhost")) as peer:
            for _ in range(4):
                stream, head = peer.headers("Attend", scheme="https")
                peer.send(head)
                widest = widest_window(peer, stream, prefixed(bytes(4 * MIB)))
                assert widest <= WINDOW_BYTES_MAX
                assert peer.outcome(stream) == INVALID_ARGUMENT  # zeros are no request
            assert peer.heard["PingFrame"] == 0


def widest_window(peer, stream, message):
    """Sends the message as the server lets it; the most bytes that it let at once."""
    call, widest = peer.calls[stream], 0
    while message:
        peer.read_until(lambda: call.over() or peer.window_bytes > 0 < peer.initial_window_bytes + call.window_bytes)
        room = min(peer.window_bytes, peer.initial_window_bytes + call.window_bytes)
        assert room > 0, "the server keeps its window shut"
        widest = max(widest, room)
        part, message = message[:room], message[room:]
        peer.send(*data_frames(stream, part, end_stream=not message))
        peer.window_bytes -= len(part)
        call.window_bytes -= len(part)
    return widest
