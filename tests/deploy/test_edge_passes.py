"""deploy/envoy: what reaches a server of what a caller sent, and which calls are tried a second time."""

import contextlib

import grpc
import pytest

import wire
from aftermath import good_call, long_request, memory_reserved, random_request
from attnd.v1 import attention_pb2 as pb
from attnd.v1 import store_pb2, store_pb2_grpc
from attnd_server import CALL_SECONDS_MAX, AttndServer, eventually
from edge import SERVER_FLAGS, Edge
from fake_upstream import FakeUpstream
from inference import inference_pb2, inference_pb2_grpc

TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@contextlib.contextmanager
def an_edge_before(*answers):
    """Fakes that answer so, and the edge."""
    with contextlib.ExitStack() as stack:
        fakes = [stack.enter_context(FakeUpstream(answer)) for answer in answers]
        yield fakes, stack.enter_context(Edge([fake.port for fake in fakes]))


def fine(*_):
    return pb.InfoResponse(version="here").SerializeToString()


def ends(code, headers_first=False):
    def answer(method, request, context):
        if headers_first:
            context.send_initial_metadata(())
        context.abort(code, "as the test wants it")

    return answer


def test_ids_deadlines_and_tokens_reach_the_server():
    with an_edge_before(fine) as ((fake,), edge):
        sent = {"x-request-id": "of-the-caller", "traceparent": TRACE, "authorization": "Bearer of-the-caller"}
        # What would set the edge's own behaviour does not pass.
        control = {"x-envoy-upstream-rq-timeout-ms": "1", "x-envoy-max-retries": "100", "x-envoy-retry-on": "5xx"}
        call = edge.stub().Info.with_call(
            pb.InfoRequest(), timeout=CALL_SECONDS_MAX, metadata=[*sent.items(), *control.items()]
        )[1]
        ((_, metadata, left),) = fake.calls
        assert {key: metadata.get(key) for key in sent} == sent
        assert not set(control) & set(metadata)
        assert 0 < left <= CALL_SECONDS_MAX
        assert dict(call.initial_metadata())["x-request-id"] == "of-the-caller"
        # One who names nothing gets an id, and no deadline of the edge's: the server has a default.
        edge.stub().Info(pb.InfoRequest())
        _, metadata, left = fake.calls[1]
        assert len(metadata["x-request-id"]) == 36 and left > 10**6


UNARY, STREAM = "unary", "stream"


def call(edge, kind):
    """The code with which one call ended."""
    try:
        if kind == UNARY:
            edge.stub().Info(pb.InfoRequest(), timeout=CALL_SECONDS_MAX)
        else:
            list(edge.stub().AttendStream(iter([pb.AttendStreamRequest()]), timeout=CALL_SECONDS_MAX))
    except grpc.RpcError as failed:
        return failed.code()
    return grpc.StatusCode.OK


UNAVAILABLE = grpc.StatusCode.UNAVAILABLE
EVERY_FAILURE = [code for code in grpc.StatusCode if code not in (grpc.StatusCode.OK, UNAVAILABLE)]


def test_what_a_server_may_have_computed_is_not_tried_again():
    answer = {}
    with an_edge_before(*[lambda *call: answer["is"](*call)] * 2) as (fakes, edge):

        def attempts(kind, code, headers_first=False):
            before = sum(len(fake.calls) for fake in fakes)
            answer["is"] = ends(code, headers_first)
            assert call(edge, kind) == code
            return sum(len(fake.calls) for fake in fakes) - before

        for code in EVERY_FAILURE:
            assert attempts(UNARY, code) == 1, code
        assert attempts(UNARY, UNAVAILABLE, headers_first=True) == 1
        assert attempts(STREAM, UNAVAILABLE) == 1
        assert attempts(STREAM, UNAVAILABLE, headers_first=True) == 1
        # UNAVAILABLE and nothing before it: the other server is asked, where there is one.
        assert attempts(UNARY, UNAVAILABLE) > 1
        # No server is judged by its answers.
        assert len(edge.healthy()) == 2


@pytest.mark.parametrize("message_bytes", [100, 15 << 20])
def test_a_server_that_drains_passes_its_calls_to_the_other(message_bytes):
    with an_edge_before(ends(UNAVAILABLE), fine) as ((draining, other), edge):
        attend = edge.channel().unary_unary("/attnd.v1.AttentionService/Attend")
        for _ in range(30):
            assert attend(b"x" * message_bytes, timeout=CALL_SECONDS_MAX) == fine()
        assert len(other.calls) == 30
        assert draining.calls  # a choice of 30 that never fell on it: once in 10^9


@pytest.mark.parametrize("kind", [UNARY, STREAM])
def test_a_server_that_is_gone_passes_its_calls_to_the_other(kind):
    with an_edge_before(fine, fine) as ((gone, other), edge):
        gone.stop()
        for _ in range(30):
            assert call(edge, kind) == grpc.StatusCode.OK
        assert len(other.calls) == 30 and not gone.calls
        assert edge.counter("cluster.attnd.upstream_rq_retry_success")  # before it was noticed


def test_the_services_that_are_the_same_on_every_server_pass():
    with AttndServer(*SERVER_FLAGS) as server, Edge([server.port]) as edge:
        infer = inference_pb2_grpc.GRPCInferenceServiceStub(edge.channel())
        assert infer.ServerLive(inference_pb2.ServerLiveRequest(), timeout=CALL_SECONDS_MAX).live
        bad = inference_pb2.ModelInferRequest(model_name="attention", id="1")
        (answer,) = infer.ModelStreamInfer(iter([bad]), timeout=CALL_SECONDS_MAX)
        assert 'inputs["q"]' in answer.error_message
        store = store_pb2_grpc.StoreServiceStub(edge.channel())
        with pytest.raises(grpc.RpcError) as refused:
            store.ListTensors(store_pb2.ListTensorsRequest(), timeout=CALL_SECONDS_MAX)
        assert refused.value.code() == grpc.StatusCode.UNIMPLEMENTED


def test_a_deadline_and_a_cancel_stop_the_work():
    with AttndServer(*SERVER_FLAGS) as server, Edge([server.port]) as edge:
        stub = edge.stub()
        with pytest.raises(grpc.RpcError) as late:
            wire.attend(stub, long_request(8192), timeout=0.5)
        assert late.value.code() == grpc.StatusCode.DEADLINE_EXCEEDED
        eventually("its work has stopped", lambda: memory_reserved(server) == 0)
        left = stub.Attend.future(long_request(8192), timeout=CALL_SECONDS_MAX)
        eventually("it computes", lambda: memory_reserved(server) > 0)
        left.cancel()
        eventually("its work has stopped", lambda: memory_reserved(server) == 0)
        assert wire.attend(stub, random_request(1, 8, 8)).raw == wire.attend(
            server.stub(), random_request(1, 8, 8)
        ).raw
        assert edge.healthy() == {server.port}  # a caller's impatience is not the server's fault
        good_call(server)
