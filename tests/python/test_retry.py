"""What is asked again, when, and what never is."""

import asyncio
import concurrent.futures

import grpc
import numpy as np
import pytest
from google.protobuf import any_pb2, duration_pb2
from grpc import StatusCode

import attnd
from attnd import _retry
from attnd_server import CALL_SECONDS_MAX

Q = np.random.default_rng(11).standard_normal((1, 2, 5, 8)).astype(np.float32)
W = {name: np.eye(8, dtype=np.float32) for name in ("w_q", "w_k", "w_v")}


def waits(attempts, budget, error, deadline=1e9, uniform=0.5):
    """How long a call waits whose every attempt ends like that, until it gives up."""
    retries, now, found = _retry.Retries(attempts, budget, deadline), 0.0, []
    while (wait := retries.wait_after(error, now, uniform)) is not None:
        found.append(wait)
        now += wait
    return found


def test_waits_grow_and_are_kept_apart_by_chance():
    gone = attnd.Unavailable("gone")
    assert waits(5, _retry.Budget(), gone) == pytest.approx([0.1, 0.2, 0.4, 0.8])
    assert waits(5, _retry.Budget(), gone, uniform=0.0) == pytest.approx([0.08, 0.16, 0.32, 0.64])
    assert waits(2, _retry.Budget(), gone, uniform=0.75) == pytest.approx([0.11])
    assert waits(1, _retry.Budget(), gone) == []


def test_the_servers_delay_is_never_made_shorter():
    full = attnd.ResourceExhausted("full", retry_after_s=0.3)
    assert waits(5, _retry.Budget(), full, uniform=0.0) == pytest.approx([0.3, 0.3, 0.32, 0.64])
    assert waits(2, _retry.Budget(), full, uniform=0.5) == pytest.approx([0.33])


def test_nothing_is_waited_for_beyond_the_deadline():
    assert waits(5, _retry.Budget(), attnd.Unavailable("gone"), deadline=0.5) == pytest.approx([0.1, 0.2])
    assert waits(5, _retry.Budget(), attnd.ResourceExhausted("full", retry_after_s=9), deadline=8) == []


def test_what_would_not_help_is_not_asked_again():
    for error in (attnd.ResourceExhausted("for ever"), attnd.InvalidArgument("k"), attnd.DeadlineExceeded("late")):
        assert waits(5, _retry.Budget(), error) == []


def test_a_clients_calls_have_a_budget_together():
    gone, budget = attnd.Unavailable("gone"), _retry.Budget()
    # 10 tokens, of which the last 5 are not for asking again: 9, 8, (7); 6, (5); (4); (3).
    assert [len(waits(3, budget, gone)) for _ in range(4)] == [2, 1, 0, 0]
    for _ in range(35):
        budget.answered()
    assert len(waits(3, budget, gone)) == 1  # of 6.5: 5.5, (4.5)


class Between(grpc.GenericRpcHandler):
    """Ends the first `failures` calls with `code`, and hands the others on to a server."""

    def __init__(self, channel, failures, code, delay_ms):
        self.channel, self.failures, self.code, self.delay_ms = channel, failures, code, delay_ms
        self.asked = []

    def service(self, details):
        method = details.method

        def answer(requests, context):
            self.asked.append(method.rpartition("/")[2])
            if len(self.asked) <= self.failures:
                if self.delay_ms:
                    context.set_trailing_metadata((("grpc-status-details-bin", retry_info(self.delay_ms)),))
                context.abort(self.code, "not now")
            yield from self.channel.stream_stream(method)(requests, timeout=CALL_SECONDS_MAX)

        return grpc.stream_stream_rpc_method_handler(answer)


def retry_info(delay_ms):
    """google.rpc.Status { Any details = 3; } with RetryInfo { Duration retry_delay = 1; }."""
    held = lambda number, message: bytes([number << 3 | 2, len(message)]) + message
    delay = duration_pb2.Duration(nanos=delay_ms * 1_000_000).SerializeToString()
    info = any_pb2.Any(type_url="type.googleapis.com/google.rpc.RetryInfo", value=held(1, delay))
    return held(3, info.SerializeToString())


@pytest.fixture
def between(server):
    """between(failures, code, delay_ms) -> (address, who stands between)."""
    started = []

    def start(failures, code=StatusCode.UNAVAILABLE, delay_ms=0):
        handler = Between(server.channel(), failures, code, delay_ms)
        made = grpc.server(concurrent.futures.ThreadPoolExecutor(4), handlers=(handler,))
        port = made.add_insecure_port("127.0.0.1:0")
        made.start()
        started.append(made)
        return f"127.0.0.1:{port}", handler

    yield start
    for made in started:
        made.stop(None).wait()


def ask(how, address, call, **options):
    if how == "waiting":
        with attnd.connect(address, timeout=CALL_SECONDS_MAX, **options) as client:
            return call(client)

    async def body():
        async with attnd.aio.connect(address, timeout=CALL_SECONDS_MAX, **options) as client:
            answer = call(client)
            if isinstance(answer, attnd.aio.BlockStream):
                return await answer.answer()
            return await answer

    return asyncio.run(body())


SAFE = {
    "Attend": lambda client: client.attend(Q, Q, Q, causal=True, stream=False),
    "AttendStream": lambda client: client.attend(Q, Q, Q, causal=True, stream=True),
    "Plan": lambda client: client.plan(Q, Q, Q),
    "Info": lambda client: client.info(),
    "GetTensor": lambda client: client.get_tensor("kept"),
    "ListTensors": lambda client: client.list_tensors(),
    "GetWeightSet": lambda client: client.get_weight_set("kept"),
    "ListWeightSets": lambda client: client.list_weight_sets(),
}
ASKED_ONCE = {
    "PutTensor": lambda client: client.put_tensor("new", Q),
    "AppendTensors": lambda client: client.append({"kept": Q[:, :, :1]}),
    "DeleteTensor": lambda client: client.delete_tensor("kept"),
    "PutWeightSet": lambda client: client.put_weight_set("new", attnd.Projection(q_heads=1, kv_heads=1, **W)),
    "DeleteWeightSet": lambda client: client.delete_weight_set("kept"),
    "AttendStream": lambda client: client.attend_stream(Q, Q, Q).answer(),
}


@pytest.fixture
def kept(client):
    """A tensor and a weight set of this name, which stay as they are; nothing is called `new`."""
    client.put_tensor("kept", Q, append_axis=2, capacity=9)
    client.put_weight_set("kept", attnd.Projection(q_heads=1, kv_heads=1, **W))
    yield
    assert client.get_tensor("kept").shape == Q.shape and client.get_weight_set("kept").version == 1
    for missing in (client.get_tensor, client.get_weight_set):
        with pytest.raises(attnd.NotFound):
            missing("new")
    client.delete_tensor("kept")
    client.delete_weight_set("kept")


@pytest.mark.parametrize("how", ["waiting", "asyncio"])
@pytest.mark.parametrize("method", SAFE)
def test_what_changes_nothing_is_asked_until_it_is_answered(client, kept, between, method, how):
    address, handler = between(2)
    got = ask(how, address, SAFE[method])
    assert handler.asked == [method] * 3
    if method.startswith("Attend"):
        assert got.output.tobytes() == SAFE[method](client).output.tobytes()
    elif method != "Info":  # which has what the moment has
        assert got == SAFE[method](client)


@pytest.mark.parametrize("how", ["waiting", "asyncio"])
@pytest.mark.parametrize("method", ASKED_ONCE)
def test_what_changes_something_is_asked_once(client, kept, between, method, how):
    call = ASKED_ONCE[method]
    if (method, how) == ("AttendStream", "asyncio"):
        call = lambda client: client.attend_stream(Q, Q, Q)
    address, handler = between(1)
    # A stream of asyncio's that ends while it is written to does not know the words.
    with pytest.raises(attnd.Unavailable, match="not now|ended while its request was being sent"):
        ask(how, address, call)
    assert handler.asked == [method]


def test_the_servers_word_on_when_to_come_again_is_taken(client, between):
    right = SAFE["Attend"](client).output.tobytes()
    address, handler = between(2, StatusCode.RESOURCE_EXHAUSTED, delay_ms=5)
    assert ask("waiting", address, SAFE["Attend"]).output.tobytes() == right and len(handler.asked) == 3
    for options, arguments, error in (
        ({}, (1, StatusCode.RESOURCE_EXHAUSTED), attnd.ResourceExhausted),
        ({}, (1, StatusCode.INTERNAL), attnd.Internal),
        ({"attempts": 1}, (1,), attnd.Unavailable),
    ):
        address, handler = between(*arguments)
        with pytest.raises(error, match="not now"):
            ask("waiting", address, SAFE["Attend"], **options)
        assert len(handler.asked) == 1
    address, handler = between(3)
    with pytest.raises(attnd.Unavailable):
        ask("waiting", address, SAFE["Attend"], attempts=3)
    assert len(handler.asked) == 3
