"""A gRPC server in this process that keeps what it was sent and answers as it is told.

What the edge passes on, and what it tries again, is seen here.
"""

import threading
from concurrent import futures

import grpc

from attnd_server import MESSAGE_BYTES_MAX, health_pb2

HEALTH = "/grpc.health.v1.Health/Check"
SERVING = health_pb2.HealthCheckResponse(status=health_pb2.HealthCheckResponse.SERVING).SerializeToString()


OPTIONS = [("grpc.so_reuseport", 0), ("grpc.max_receive_message_length", MESSAGE_BYTES_MAX)]


class FakeUpstream(grpc.GenericRpcHandler):
    """`answer(method, request, context)` gives the reply's bytes, or ends the call by the context."""

    def __init__(self, answer):
        self._answer, self._lock = answer, threading.Lock()
        self.calls = []  # (method, metadata, seconds left), health checks left out

    def __enter__(self):
        self._server = grpc.server(futures.ThreadPoolExecutor(16), options=OPTIONS)
        self._server.add_generic_rpc_handlers((self,))
        self.port = self._server.add_insecure_port("127.0.0.1:0")
        self._server.start()
        return self

    def __exit__(self, *_):
        self.stop()

    def stop(self):
        self._server.stop(None).wait()

    def service(self, details):
        if details.method == HEALTH:
            return grpc.unary_unary_rpc_method_handler(lambda request, context: SERVING)
        metadata = {key: value for key, value in details.invocation_metadata}

        def note(context):
            with self._lock:
                self.calls.append((details.method, metadata, context.time_remaining()))

        def unary(request, context):
            note(context)
            return self._answer(details.method, request, context)

        def stream(requests, context):
            note(context)
            yield self._answer(details.method, next(requests), context)

        if details.method.endswith("Stream"):
            return grpc.stream_stream_rpc_method_handler(stream)
        return grpc.unary_unary_rpc_method_handler(unary)
