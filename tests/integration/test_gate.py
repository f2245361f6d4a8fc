"""The gate before every method: each identity tries each method that the descriptors know, and some that are not."""

import hashlib
import json
import os
import queue
import re
import time

import grpc
import pytest
from google.protobuf import descriptor_pb2

import wire
from aftermath import good_answer, long_request, random_request
from attnd.v1 import attention_pb2 as pb
from attnd.v1 import attention_pb2_grpc, store_pb2
from attnd_server import CALL_SECONDS_MAX, ROOT, AttndServer, eventually, health_pb2
from inference import inference_pb2

ATTENTION = "attnd.v1.AttentionService"
TOKENS = {name: f"token-of-{name}" for name in ("platform", "prober", "batch", "reader", "nobody")}
POLICIES = {
    "platform": {"methods": ["*"]},
    "prober": {"methods": ["grpc.health.v1.Health/*"]},
    "batch": {
        "methods": [f"{ATTENTION}/*"],
        "priority_max": "low",
        "requests_in_flight_max": 2,
        "bytes_in_flight_max": 1 << 20,
    },
    "reader": {"methods": [f"{ATTENTION}/Info", f"{ATTENTION}/Plan"]},
}
ANONYMOUS = {"methods": ["grpc.health.v1.Health/Check"]}


def services():
    """Method -> whether it streams, (in, out), of every service in the project's .proto files."""
    methods = {}
    for module in (pb, store_pb2, inference_pb2, health_pb2):
        file = descriptor_pb2.FileDescriptorProto.FromString(module.DESCRIPTOR.serialized_pb)
        for service in file.service:
            for method in service.method:
                methods[f"{file.package}.{service.name}/{method.name}"] = (
                    method.client_streaming,
                    method.server_streaming,
                )
    reflection = (ROOT / "proto/grpc/reflection/v1alpha/reflection.proto").read_text()
    assert "service ServerReflection " in reflection and reflection.count("rpc ") == 1
    methods["grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo"] = (True, True)
    return methods


def auth_text(policies=POLICIES, anonymous=ANONYMOUS):
    identities = [
        {"name": name, "tokens_sha256": [hashlib.sha256(TOKENS[name].encode()).hexdigest()], **policy}
        for name, policy in policies.items()
    ]
    return json.dumps({"identities": identities, **({"anonymous": anonymous} if anonymous else {})})


def write(path, text):
    path.with_suffix(".new").write_text(text)
    os.replace(path.with_suffix(".new"), path)


def bearer(name):
    return (("authorization", f"Bearer {TOKENS[name]}"),) if name else ()


@pytest.fixture(scope="module")
def guarded(tmp_path_factory):
    path = tmp_path_factory.mktemp("auth") / "auth.json"
    write(path, auth_text())
    with AttndServer(f"--auth_file={path}", "--reflection") as server:
        yield server


def outcome(channel, method, streams, name):
    """The code that a call with an empty message ends with; OK when it is let in and waits for more."""
    kind = {
        (False, False): channel.unary_unary,
        (True, False): channel.stream_unary,
        (False, True): channel.unary_stream,
        (True, True): channel.stream_stream,
    }[streams]
    call = kind(f"/{method}", lambda message: message, lambda message: message)
    try:
        if not streams[1]:
            call(iter([b""]) if streams[0] else b"", metadata=bearer(name), timeout=CALL_SECONDS_MAX)
        else:
            answers = call(iter([b""]) if streams[0] else b"", metadata=bearer(name), timeout=CALL_SECONDS_MAX)
            next(answers)
            answers.cancel()
    except StopIteration:
        pass
    except grpc.RpcError as error:
        return error.code()
    return grpc.StatusCode.OK


def allowed(name, method):
    patterns = (POLICIES[name] if name else ANONYMOUS)["methods"]
    return any(method == p or (p.endswith("*") and method.startswith(p[:-1])) for p in patterns)


@pytest.mark.parametrize("method, streams", services().items())
def test_each_identity_on_each_method(guarded, method, streams):
    channel = guarded.channel()
    past_the_gate = {outcome(channel, method, streams, "platform")}
    assert not past_the_gate & {grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED}
    for name in ("prober", "batch", "reader", None):
        right = past_the_gate if allowed(name, method) else {grpc.StatusCode.PERMISSION_DENIED}
        assert outcome(channel, method, streams, name) in right, name
    assert outcome(channel, method, streams, "nobody") == grpc.StatusCode.UNAUTHENTICATED


def test_methods_that_are_not_there(guarded):
    channel = guarded.channel()
    for method in (f"{ATTENTION}/Nothing", "nothing.Service/Attend", f"{ATTENTION}/Attend/"):
        assert outcome(channel, method, (False, False), "platform") == grpc.StatusCode.UNIMPLEMENTED
        assert outcome(channel, method, (False, False), "nobody") == grpc.StatusCode.UNAUTHENTICATED
        assert outcome(channel, method, (False, False), "prober") == grpc.StatusCode.PERMISSION_DENIED


def stub_of(server, name):
    """Calls with the identity's token."""

    class Bearing(grpc.UnaryUnaryClientInterceptor, grpc.StreamStreamClientInterceptor):
        def intercept_unary_unary(self, proceed, details, request):
            return proceed(details._replace(metadata=bearer(name)), request)

        def intercept_stream_stream(self, proceed, details, requests):
            return proceed(details._replace(metadata=bearer(name)), requests)

    return attention_pb2_grpc.AttentionServiceStub(grpc.intercept_channel(server.channel(), Bearing()))


def refusal(call, *arguments):
    with pytest.raises(grpc.RpcError) as caught:
        call(*arguments, timeout=CALL_SECONDS_MAX)
    return caught.value.code(), caught.value.details()


def test_a_policy_bounds_priority_memory_and_requests(guarded):
    good_answer(stub_of(guarded, "platform"))
    batch = stub_of(guarded, "batch")
    request = random_request(1, 5, 64)
    assert batch.Attend(request, timeout=CALL_SECONDS_MAX).output.shape
    request.priority = pb.PRIORITY_NORMAL
    code, words = refusal(batch.Attend, request)
    assert code == grpc.StatusCode.PERMISSION_DENIED
    assert words == "priority: normal, this identity may ask for at most low"
    code, words = refusal(batch.Attend, random_request(8, 512, 64))
    assert code == grpc.StatusCode.RESOURCE_EXHAUSTED
    assert "of this identity" in words and "bytes_in_flight_max" in words
    # Two streams that are open are two requests; whoever has an answer may ask again at once.
    request.priority = pb.PRIORITY_LOW
    for _ in range(100):
        batch.Attend(request, timeout=CALL_SECONDS_MAX)
    streams = [open_stream(batch) for _ in range(2)]
    assert is_full(batch, request)
    for stream in streams:
        stream.cancel()
    eventually("their places come back", lambda: not is_full(batch, request))


def open_stream(stub):
    """A stream that has answered, to a cancel of nothing, and stays open."""

    def requests():
        yield pb.AttendStreamRequest(problem_id=1, cancel=pb.CancelProblem())
        time.sleep(CALL_SECONDS_MAX)

    answers = stub.AttendStream(requests(), timeout=CALL_SECONDS_MAX)
    assert next(answers).closing.error.code == grpc.StatusCode.NOT_FOUND.value[0]
    return answers


def is_full(stub, request):
    try:
        stub.Attend(request, timeout=CALL_SECONDS_MAX)
        return False
    except grpc.RpcError as error:
        assert error.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
        assert "2 of 2 (requests_in_flight_max)" in error.details()
        return True


def test_the_file_changes_while_the_server_runs(tmp_path):
    path = tmp_path / "auth.json"
    write(path, auth_text())
    with AttndServer(f"--auth_file={path}") as server:
        reader = stub_of(server, "reader")
        assert reader.Info(pb.InfoRequest(), timeout=CALL_SECONDS_MAX).version
        assert refusal(stub_of(server, "nobody").Info, pb.InfoRequest())[0] == grpc.StatusCode.UNAUTHENTICATED
        write(path, '{"identities": [{"name": "reader"}]}')
        eventually("the broken file is noticed", lambda: "auth file not reloaded" in server.log())
        assert reader.Info(pb.InfoRequest(), timeout=CALL_SECONDS_MAX).version
        write(path, auth_text({"nobody": {"methods": ["*"]}}, anonymous=None))
        eventually("the new file is live", lambda: "auth file reloaded" in server.log())
        assert refusal(reader.Info, pb.InfoRequest())[0] == grpc.StatusCode.UNAUTHENTICATED
        good_answer(stub_of(server, "nobody"))
        assert refusal(server.health().Check, health_pb2.HealthCheckRequest())[0] == grpc.StatusCode.UNAUTHENTICATED


def test_the_log_and_the_answer_say_whose_call_it_was(guarded):
    trace = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
    stub = attention_pb2_grpc.AttentionServiceStub(guarded.channel())
    sent = (*bearer("reader"), ("x-request-id", "a-request-7"), ("traceparent", trace))
    _, call = stub.Info.with_call(pb.InfoRequest(), metadata=sent, timeout=CALL_SECONDS_MAX)
    came = dict(call.trailing_metadata())
    assert came["x-request-id"] == "a-request-7" and came["traceparent"] == trace
    line = eventually("its line", lambda: [x for x in guarded.log().splitlines() if "a-request-7" in x])[0]
    assert 'identity="reader"' in line and f'traceparent="{trace}"' in line
    assert TOKENS["reader"] not in guarded.log()
    _, call = stub.Info.with_call(pb.InfoRequest(), metadata=bearer("reader"), timeout=CALL_SECONDS_MAX)
    assert len(dict(call.trailing_metadata())["x-request-id"]) == 16


def test_the_page_says_whose_requests_run(tmp_path):
    path = tmp_path / "auth.json"
    write(path, auth_text())
    with AttndServer(f"--auth_file={path}", admin=True) as server:
        call = stub_of(server, "platform").Attend.future(long_request(16384), timeout=CALL_SECONDS_MAX)
        sent = queue.SimpleQueue()
        sent.put(next(wire.stream_messages(1, random_request(1, 64, 64))))  # and no piece of it
        answers = stub_of(server, "batch").AttendStream(iter(sent.get, None), timeout=CALL_SECONDS_MAX)
        row = re.compile(r"<tr><td>(\w+)</td><td>[^<]*</td><td>(\w+)</td>")
        both = {("Attend", "platform"), ("AttendStream", "batch")}
        eventually("both are there", lambda: both <= set(row.findall(server.admin("/statusz")[1])))
        call.cancel()
        answers.cancel()
        sent.put(None)
        good_answer(stub_of(server, "platform"))


def test_a_broken_file_does_not_start(tmp_path):
    path = tmp_path / "auth.json"
    for text, words in (("{", "not JSON"), (None, "No such file")):
        path.unlink(missing_ok=True)
        if text is not None:
            path.write_text(text)
        with pytest.raises(RuntimeError) as caught:
            AttndServer(f"--auth_file={path}")
        assert "--auth_file: " in str(caught.value) and words in str(caught.value)
