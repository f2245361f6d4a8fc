"""A TCP proxy between a client and the server, to make a peer vanish as networks and machines do: reset, or silence.

What the server sees as its peer's socket is the proxy's, so that tests hold what no client library gives them.
"""

import contextlib
import socket
import struct
import threading
import time

SEND_TURN_US = 50_000  # a thread inside send would keep a socket open beyond its close for longer


class TcpProxy:
    """Forwards every connection to `port` of the loopback. Thread rule: one thread of the test uses it.

    dribble: bytes that are passed on at once, and seconds of pause after each such part.
    """

    def __init__(self, port, dribble=None):
        self._dribble = dribble
        self._server_port = port
        self._flowing = threading.Event()
        self._flowing.set()
        self._to_server, self._threads, self._sockets = [], [], []
        self._resetting = False
        self.bytes_to_server = 0
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self._start(self._accept)

    def silence(self):
        """From here on nothing is forwarded in either direction. Every socket stays open."""
        self._flowing.clear()

    def reset(self):
        """Every connection to the server ends at once with RST and no FIN."""
        self._resetting = True
        for peer in self._to_server:
            peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            with contextlib.suppress(OSError):
                peer.shutdown(socket.SHUT_RD)  # a thread inside recv would keep the socket open beyond close
            peer.close()
        self._flowing.set()  # nothing can flow any more; the clients are told

    def close(self):
        for each in (self._listener, *self._sockets):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
        self._flowing.set()
        for thread in self._threads:
            thread.join()
        for each in (self._listener, *self._sockets):
            each.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def _start(self, run, *arguments):
        thread = threading.Thread(target=run, args=arguments, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self):
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:  # closed
                return
            server = socket.create_connection(("127.0.0.1", self._server_port))
            for each in (client, server):
                each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                each.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", 0, SEND_TURN_US))
            self._sockets += [client, server]
            self._to_server.append(server)
            self._start(self._forward, client, server)
            self._start(self._forward, server, client)

    def _send_all(self, target, data):
        part_bytes, pause_seconds = self._dribble or (len(data), 0)
        while data:
            with contextlib.suppress(BlockingIOError):  # a socket that was closed meanwhile is an OSError
                data = data[target.send(data[:part_bytes]) :]
            if pause_seconds:
                time.sleep(pause_seconds)

    def _forward(self, source, target):
        """Until either end closes; then both are ended."""
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                self._flowing.wait()
                self._send_all(target, data)
                if target in self._to_server:
                    self.bytes_to_server += len(data)
        for each in (source, target):
            if self._resetting and each in self._to_server:
                continue  # a FIN would come before the RST
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
