"""Messages are protobuf's own, without protobuf; a reply that is none is an error, and never an answer."""

import concurrent.futures
import contextlib

import grpc
import numpy as np
import pytest

import attnd
import wire
from attnd import _problem, _wire
from attnd.v1 import attention_pb2 as pb
from attnd.v1 import store_pb2 as store
from through_package import keywords

Q = np.random.default_rng(13).standard_normal((2, 3, 5, 8)).astype(np.float32)


@pytest.mark.parametrize("value", [0, 1, 127, 128, 300, 2**31, 2**63 - 1])
def test_numbers(value):
    written = _wire.varint(value << 3)
    assert list(_wire.fields(memoryview(written + b"\x05"))) == [(value, 5, memoryview(written + b"\x05"))]


def test_a_request_is_what_protobuf_makes_of_it():
    draw = np.random.default_rng(14).standard_normal
    weights = {name: draw((6, 8)) for name in ("w_q", "w_k", "w_v")} | {"b_q": draw(8), "w_o": draw((8, 3))}
    rotary = {"style": "interleaved", "dim": 4, "base": 100.0, "q_positions": np.arange(10).reshape(2, 5)}
    for message in (
        wire.request(Q, Q, Q, outputs=("lse", "weights"), scale=0.0, causal=True, q_offset=[1, -2]),
        wire.request(Q, Q, Q, mask=np.tri(5), bias=draw((1, 3, 5, 5)), rotary=rotary, layout="bhnd", softcap=2.0),
        wire.request(Q, Q, Q, page_table=np.zeros((2, 1)), kv_len=[1, 2], alibi_slopes=[0.5] * 3, sinks=[1.0] * 3),
        wire.request(x=draw((2, 5, 6)), projection=wire.projection(2, 2, transposed=True, **weights), reference=True),
    ):
        ours = pb.AttendRequest.FromString(_problem.problem(**keywords(message)).request.encode())
        assert ours == message
    many = _problem.problem(Q, Q, Q, priority="low", weight_set=("a-set", 3)).request.encode()
    assert pb.AttendRequest.FromString(many).weight_set == pb.WeightSetRef(name="a-set", version=3)
    named = pb.AttendRequest.FromString(_problem.problem(Q, attnd.Stored("k"), attnd.Stored("v")).request.encode())
    assert named.k == pb.Tensor(name="k") and named.v == pb.Tensor(name="v") and named.q == wire.tensor(Q)


def replies(**changes):
    """The reply to a problem of one query of ones, by both calls, with something wrong in it."""
    tensor = {"dtype": pb.DATA_TYPE_FLOAT32, "shape": [1, 1, 1, 2], "data": bytes(8)} | changes
    block = {"kind": pb.OUTPUT_KIND_OUTPUT, "dtype": tensor["dtype"], "rows": 1, "columns": 2, "data": tensor["data"]}
    block |= {name: value for name, value in changes.items() if name in pb.Block.DESCRIPTOR.fields_by_name}
    tensor = {name: value for name, value in tensor.items() if name in pb.Tensor.DESCRIPTOR.fields_by_name}
    closing = pb.ProblemClosing(
        outputs=[pb.OutputShape(kind=pb.OUTPUT_KIND_OUTPUT, dtype=tensor["dtype"], shape=tensor["shape"])]
    )
    whole = pb.AttendResponse(output=pb.Tensor(**tensor)).SerializeToString()
    parts = [pb.AttendStreamResponse(problem_id=1, block=pb.Block(**block)), pb.AttendStreamResponse(closing=closing)]
    return whole, [part.SerializeToString() for part in parts]


@contextlib.contextmanager
def somebody_else(whole, parts=(), asked=None):
    """A server that answers with these bytes, whatever it is asked; `asked` gets (method, request) of unary calls."""

    class Handler(grpc.GenericRpcHandler):
        def service(self, details):
            if details.method.endswith("Stream"):
                return grpc.stream_stream_rpc_method_handler(lambda requests, context: iter(parts))

            def answer(request, context):
                if asked is not None:
                    asked.append((details.method, request))
                return whole

            return grpc.unary_unary_rpc_method_handler(answer)

    server = grpc.server(concurrent.futures.ThreadPoolExecutor(2), handlers=[Handler()])
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        with attnd.connect(f"127.0.0.1:{port}") as client:
            yield client
    finally:
        server.stop(None)


def asked(client, stream):
    return client.attend(np.ones((1, 1, 1, 2), np.float32), *[np.ones((1, 1, 3, 2), np.float32)] * 2, stream=stream)


@pytest.mark.parametrize("stream", [False, True])
def test_the_reply_that_is_right_is_taken(stream):
    with somebody_else(*replies()) as client:
        assert asked(client, stream).output.tobytes() == bytes(8)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    "changes",
    [
        {"data": bytes(4)},
        {"data": bytes(7)},
        {"data": bytes(16)},
        {"dtype": 99},
        {"dtype": 0},
        {"shape": [1, 1, 2]},
        {"shape": [1, 1, 1, 2, 1]},
        {"shape": [1, 1, 1, -2]},
    ],
    ids=str,
)
def test_a_tensor_that_is_none(stream, changes):
    with somebody_else(*replies(**changes)) as client:
        with pytest.raises(attnd.Internal, match="the server"):
            asked(client, stream)


@pytest.mark.parametrize("stream", [False, True])
def test_a_tensor_of_more_sequences_than_were_asked_about(stream):
    with somebody_else(*replies(shape=[2, 1, 1, 1], columns=1, rows=2)) as client:
        ones = np.ones((1, 2), np.float32)
        with pytest.raises(attnd.Internal, match="the server"):
            client.attend(ones, ones, ones, stream=stream)


@pytest.mark.parametrize(
    "changes", [{"batch": 1}, {"batch": -1}, {"head": 5}, {"first_row": 1}, {"kind": 77}, {"rows": 2}], ids=str
)
def test_a_block_that_is_out_of_place(changes):
    with somebody_else(*replies(**changes)) as client:
        with pytest.raises(attnd.Internal, match="the server"):
            asked(client, True)


@pytest.mark.parametrize("stream", [False, True])
def test_no_bytes_of_any_kind_are_taken_for_an_answer(stream):
    """The right reply, cut short at each byte: an error each time."""
    whole, parts = replies()
    for size in range(len(whole) if not stream else len(parts[0])):
        with somebody_else(whole[:size], [parts[0][:size], parts[1]]) as client:
            with pytest.raises(attnd.Internal):
                asked(client, stream)


def test_a_stream_that_ends_too_soon():
    whole, parts = replies()
    for cut in ([], parts[:1], parts[1:]):
        with somebody_else(whole, cut) as client:
            with pytest.raises(attnd.Internal, match="the (stream ended|server answered)"):
                asked(client, True)


def test_weight_sets_go_and_come_as_the_contract_has_them():
    draw = np.random.default_rng(16).standard_normal
    weights = {name: draw((6, 8)) for name in ("w_q", "w_k", "w_v")}
    projection = wire.projection(4, 2, **weights)
    heads = pb.Projection(q_heads=4, kv_heads=2)
    for name in weights:
        getattr(heads, name).MergeFrom(pb.Tensor(dtype=pb.DATA_TYPE_FLOAT32, shape=[6, 8]))
    stored = store.StoredWeightSet(name="a", version=3, projection=heads, bytes=1152, from_file=True, owner="b")
    ours = attnd.Projection(
        q_heads=4, kv_heads=2, **{name: array.astype(np.float32) for name, array in weights.items()}
    )
    rotary = pb.Rotary(style=pb.ROTARY_STYLE_HALF, rotary_dim=2, rope_base=50.0)
    for method, call, request, reply in (
        (
            "PutWeightSet",
            lambda client: client.put_weight_set("a", ours, version=3, rotary=attnd.Rotary(2, rope_base=50.0)),
            store.PutWeightSetRequest(name="a", version=3, projection=projection, rotary=rotary),
            store.PutWeightSetResponse(weight_set=stored),
        ),
        (
            "PutWeightSet",
            lambda client: client.put_weight_set("a", ours),
            store.PutWeightSetRequest(name="a", projection=projection),
            store.PutWeightSetResponse(weight_set=stored),
        ),
        (
            "GetWeightSet",
            lambda client: client.get_weight_set("a", 3),
            store.GetWeightSetRequest(name="a", version=3),
            store.GetWeightSetResponse(weight_set=stored),
        ),
        (
            "ListWeightSets",
            lambda client: client.list_weight_sets()[0],
            store.ListWeightSetsRequest(),
            store.ListWeightSetsResponse(weight_sets=[stored]),
        ),
    ):
        came = []
        with somebody_else(reply.SerializeToString(), asked=came) as client:
            found = call(client)
        assert came == [(f"/attnd.v1.StoreService/{method}", came[0][1])]
        assert type(request).FromString(came[0][1]) == request
        assert (found.name, found.version, found.q_heads, found.kv_heads) == ("a", 3, 4, 2)
        assert found.shapes == {name: (6, 8) for name in weights} and set(found.dtypes.values()) == {"float32"}
        assert (found.bytes, found.from_file, found.calls, found.owner) == (1152, True, 0, "b")
    came = []
    with somebody_else(b"", asked=came) as client:
        client.delete_weight_set("a")
        client.delete_weight_set("a", 3)
    assert [store.DeleteWeightSetRequest.FromString(request) for _, request in came] == [
        store.DeleteWeightSetRequest(name="a"),
        store.DeleteWeightSetRequest(name="a", version=3),
    ]
