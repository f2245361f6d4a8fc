"""Tensors by name: a call that names what the server keeps gives the same bytes as one that carries it."""

import hashlib
import json
import re
import threading

import grpc
import numpy as np
import pytest

import weight_sets
import wire
from aftermath import good_call, leaves_nothing, long_request, memory_reserved
from attnd.v1 import attention_pb2 as pb
from attnd.v1 import attention_pb2_grpc, store_pb2, store_pb2_grpc
from attnd_server import CALL_SECONDS_MAX, AttndServer, eventually


def store_of(server, token=None):
    """The store's calls by their names, each with a bound in time, as the token's identity."""
    stub = store_pb2_grpc.StoreServiceStub(server.channel())
    metadata = (("authorization", f"Bearer {token}"),) if token else ()

    class Store:
        def __getattr__(self, name):
            return lambda *a, **k: getattr(stub, name)(*a, timeout=CALL_SECONDS_MAX, metadata=metadata, **k)

    return Store()


def put(store, name, array, dtype="float32", pieces=1, **header):
    """In one message, or the header and then so many pieces."""
    tensor = wire.tensor(array, dtype)
    data = tensor.data
    if pieces > 1:
        tensor.ClearField("data")

    def messages():
        yield store_pb2.PutTensorRequest(header=store_pb2.PutTensorHeader(name=name, tensor=tensor, **header))
        cuts = [len(data) * i // pieces for i in range(pieces + 1)]
        for begin, end in zip(cuts, cuts[1:]) if pieces > 1 else ():
            yield store_pb2.PutTensorRequest(data=data[begin:end])

    return store.PutTensor(messages()).tensor


def append(store, length_before=None, dtype="float32", **rows):
    return store.AppendTensors(
        store_pb2.AppendTensorsRequest(
            appends=[
                store_pb2.TensorAppend(name=name, rows=wire.tensor(array, dtype), length_before=length_before)
                for name, array in rows.items()
            ]
        )
    ).tensors


def naming(request, **names):
    """The request with the tensors of these fields replaced by names."""
    named = pb.AttendRequest()
    named.CopyFrom(request)
    for field, name in names.items():
        message, _, last = field.rpartition("__")
        owner = named
        for part in filter(None, message.split("__")):
            owner = getattr(owner, part)
        getattr(owner, last).CopyFrom(pb.Tensor(name=name))
    return named


def draw(seed, *shape):
    return np.random.default_rng(seed).standard_normal(shape)


def refusal(call, *arguments, **more):
    with pytest.raises(grpc.RpcError) as caught:
        call(*arguments, **more)
    return caught.value.code().name, caught.value.details()


@pytest.fixture()
def store(server):
    store = store_of(server)
    yield store
    for tensor in store.ListTensors(store_pb2.ListTensorsRequest()).tensors:
        store.DeleteTensor(store_pb2.DeleteTensorRequest(name=tensor.name))
    eventually("the store is empty", lambda: memory_reserved(server) == 0)


@pytest.mark.parametrize("layout, axis", [("bhnd", 2), ("bnhd", 1)])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_decode_steps_over_a_cache_that_grows(store, stub, layout, axis, dtype):
    batch, heads, width, first, steps = 2, 3, 24, 130, 5
    shape = [batch, heads, first + steps, width]
    k, v = draw(1, *shape), draw(2, *shape)
    q = draw(3, batch, 2 * heads, 1, width)
    if layout == "bnhd":
        k, v, q = (t.transpose(0, 2, 1, 3) for t in (k, v, q))
    rows = lambda t, begin, end: t.take(range(begin, end), axis)  # noqa: E731
    for name, t in (("k", k), ("v", v)):
        kept = put(store, name, rows(t, 0, first), dtype, pieces=7, append_axis=axis, capacity=first + steps)
        assert kept.shape[axis] == first and kept.capacity == first + steps and kept.bytes >= t.size * 2
    for length in range(first, first + steps + 1):
        carried = wire.request(q, rows(k, 0, length), rows(v, 0, length), dtype=dtype, layout=layout, causal=True,
                               outputs=["lse", "weights"])
        right, named = wire.attend(stub, carried), naming(carried, k="k", v="v")
        assert wire.attend(stub, named).raw == right.raw
        assert wire.attend_stream(stub, named).raw == wire.attend_stream(stub, carried).raw
        if length < first + steps:
            more = {"k": rows(k, length, length + 1), "v": rows(v, length, length + 1)}
            assert {t.shape[axis] for t in append(store, length, dtype, **more)} == {length + 1}
    code, words = refusal(append, store, **{"k": rows(k, 0, 1)}, dtype=dtype)
    assert code == "RESOURCE_EXHAUSTED" and "capacity" in words


def test_any_tensor_may_be_named(store, stub):
    x, heads = draw(4, 2, 9, 16), 2
    weights = {name: draw(i, 16, 16) for i, name in enumerate(("w_q", "w_k", "w_v", "w_o"))}
    carried = wire.request(x=x, projection=wire.projection(heads, heads, **weights), bias=draw(5, 9, 9),
                           mask=draw(6, 9, 9) > -1)
    for name, array in {"x": x, "bias": draw(5, 9, 9), **weights}.items():
        put(store, name, array)
    put(store, "mask", draw(6, 9, 9) > -1, "bool")
    fields = {"x": "x", "options__mask": "mask", "options__bias": "bias"}
    named = naming(carried, **fields, **{f"projection__{name}": name for name in weights})
    assert wire.attend(stub, named).raw == wire.attend(stub, carried).raw
    pages = wire.request(draw(7, 1, 2, 1, 8), draw(8, 5, 2, 4, 8), draw(9, 5, 2, 4, 8), page_table=[[4, 0, 2]])
    for field in ("k", "v"):
        put(store, field, draw({"k": 8, "v": 9}[field], 5, 2, 4, 8), append_axis=0, capacity=9)
    put(store, "table", np.array([[4, 0, 2]]), "int64")
    named = naming(pages, k="k", v="v", options__page_table="table")
    assert wire.attend(stub, named).raw == wire.attend(stub, pages).raw


def test_a_named_tensor_is_not_among_the_inputs_of_a_call(store, stub):
    q, k, v = draw(1, 1, 1, 1, 64), draw(2, 1, 1, 4096, 64), draw(3, 1, 1, 4096, 64)
    put(store, "k", k)
    put(store, "v", v)
    shapes = wire.request(q, k, v)
    for field in "qkv":
        getattr(shapes, field).ClearField("data")
    carried = stub.Plan(pb.PlanRequest(problem=shapes)).request_bytes
    named = stub.Plan(pb.PlanRequest(problem=naming(shapes, k="k", v="v"))).request_bytes
    assert (carried, named) == (256 + 2 * 4096 * 256, 256)


def test_a_call_keeps_what_it_began_with(store, server):
    stub = server.stub()
    carried = long_request(2048)
    right = wire.attend(stub, carried)
    k, v = (np.frombuffer(getattr(carried, f).data, "<f4").reshape(getattr(carried, f).shape) for f in "kv")
    put(store, "k", k, append_axis=2, capacity=4096)
    put(store, "v", v, append_axis=2, capacity=4096)
    running = stub.Attend.future(naming(carried, k="k", v="v"), timeout=CALL_SECONDS_MAX)
    get = lambda: store.GetTensor(store_pb2.GetTensorRequest(name="k")).tensor  # noqa: E731
    eventually("the call reads it", lambda: get().calls == 1)
    append(store, k=k, v=v)
    assert get().shape[2] == 4096
    put(store, "k", np.zeros((1, 1, 1, 1)))
    store.DeleteTensor(store_pb2.DeleteTensorRequest(name="v"))
    assert not running.done()
    assert running.result().output == pb.Tensor(
        dtype=carried.q.dtype, shape=carried.q.shape, data=right.raw["output"]
    )


def test_readers_see_whole_appends(store, server):
    """k and v grow together under readers; the echoed offset says at which length each answer was computed."""
    length, first, width = 96, 32, 8
    k, v, q = draw(1, 1, 2, length, width), draw(2, 1, 2, length, width), draw(3, 1, 2, 1, width)
    stub = server.stub()
    right = {n: wire.attend(stub, wire.request(q, k[:, :, :n], v[:, :, :n])).raw for n in range(first, length + 1)}
    for name, t in (("k", k), ("v", v)):
        put(store, name, t[:, :, :first], append_axis=2, capacity=length)
    wrong, seen, done = [], set(), threading.Event()

    def read():
        reader = server.stub()
        while not done.is_set():
            answer = wire.attend(reader, naming(wire.request(q, k, v), k="k", v="v"))
            seen.add(rows := answer.statistics.q_offset[0] + 1)
            if answer.raw != right[rows]:
                wrong.append(rows)

    readers = [threading.Thread(target=read) for _ in range(3)]
    for reader in readers:
        reader.start()
    try:
        eventually("they read", lambda: first in seen)
        for n in range(first, length):
            append(store, n, k=k[:, :, n : n + 1], v=v[:, :, n : n + 1])
        eventually("they see the last", lambda: length in seen)
    finally:
        done.set()
        for reader in readers:
            reader.join()
    assert wrong == []
    assert wire.attend(stub, naming(wire.request(q, k, v), k="k", v="v")).raw == right[length]


def test_what_a_put_and_an_append_are_refused_for(store, stub):
    put(store, "k", np.zeros((1, 2, 3, 4)), append_axis=2, capacity=5)
    put(store, "plain", np.zeros((2, 2)))
    row = np.zeros((1, 2, 1, 4))
    for words, code, call in (
        ('header.name: "K"', "INVALID_ARGUMENT", lambda: put(store, "K", row)),
        ('header.name: "../k"', "INVALID_ARGUMENT", lambda: put(store, "../k", row)),
        ('header.name: ""', "INVALID_ARGUMENT", lambda: put(store, "", row)),
        ("header.capacity: given", "INVALID_ARGUMENT", lambda: put(store, "a", row, capacity=7)),
        ("header.capacity: 1, expected at least 2", "INVALID_ARGUMENT",
         lambda: put(store, "a", row, append_axis=1, capacity=1)),
        ("header.append_axis: 4", "INVALID_ARGUMENT", lambda: put(store, "a", row, append_axis=4, capacity=9)),
        ("header.append_axis: 2", "INVALID_ARGUMENT",
         lambda: put(store, "a", np.zeros((257, 257, 0, 0)), append_axis=2, capacity=9)),
        ("header.ttl_ms: -1", "INVALID_ARGUMENT", lambda: put(store, "a", row, ttl_ms=-1)),
        ("store_ttl_ms", "INVALID_ARGUMENT", lambda: put(store, "a", row, ttl_ms=1 << 40)),
        ("store_bytes_max", "RESOURCE_EXHAUSTED", lambda: put(store, "a", row, append_axis=2, capacity=1 << 40)),
        ("64-bit integer", "INVALID_ARGUMENT", lambda: put(store, "a", row, append_axis=2, capacity=1 << 62)),
        ("append_axis", "FAILED_PRECONDITION", lambda: append(store, plain=np.zeros((1, 2)))),
        ("float32 [1,2,-1,4]", "INVALID_ARGUMENT", lambda: append(store, k=np.zeros((1, 3, 1, 4)))),
        ("float32 [1,2,-1,4]", "INVALID_ARGUMENT", lambda: append(store, k=row, dtype="float16")),
        ("length_before: 2", "FAILED_PRECONDITION", lambda: append(store, 2, k=row)),
        ('appends[0].name: "v"', "NOT_FOUND", lambda: append(store, v=row)),
        ("a second time", "INVALID_ARGUMENT", lambda: store.AppendTensors(store_pb2.AppendTensorsRequest(
            appends=[store_pb2.TensorAppend(name="k", rows=wire.tensor(row))] * 2))),
        ("rows: 3 more", "RESOURCE_EXHAUSTED", lambda: append(store, k=np.zeros((1, 2, 3, 4)))),
        ('name: "v"', "NOT_FOUND", lambda: store.GetTensor(store_pb2.GetTensorRequest(name="v"))),
        ('name: "v"', "NOT_FOUND", lambda: store.DeleteTensor(store_pb2.DeleteTensorRequest(name="v"))),
        ("no header", "INVALID_ARGUMENT",
         lambda: store.PutTensor(iter([store_pb2.PutTensorRequest(data=b"1234")]))),
        ("no header", "INVALID_ARGUMENT", lambda: store.PutTensor(iter([store_pb2.PutTensorRequest()]))),
        ("request: absent", "INVALID_ARGUMENT", lambda: store.PutTensor(iter([]))),
    ):
        got, details = refusal(call)
        assert (got, words in details) == (code, True), (words, got, details)
    # All or none: v is not there, so k is as it was.
    refusal(append, store, k=row, v=row)
    assert [(t.name, list(t.shape)) for t in store.ListTensors(store_pb2.ListTensorsRequest()).tensors] == [
        ("k", [1, 2, 3, 4]), ("plain", [2, 2])
    ]


def test_what_a_call_with_names_is_refused_for(store, stub):
    q = np.ones((1, 2, 1, 4))
    put(store, "k", np.ones((1, 2, 3, 4)), append_axis=2, capacity=5)
    put(store, "short", np.ones((1, 2, 2, 4)))
    put(store, "mask", np.ones((2, 1, 3)), "bool", append_axis=2, capacity=5)
    carried = wire.request(q, np.ones((1, 2, 3, 4)), np.ones((1, 2, 3, 4)))
    both = naming(carried, k="k")
    both.k.shape.append(1)
    masked = wire.request(q, np.ones((1, 2, 3, 4)), np.ones((1, 2, 3, 4)), mask=np.ones((2, 1, 3), bool))
    for words, code, request in (
        ('k.name: "nothing"', "NOT_FOUND", naming(carried, k="nothing")),
        ('v.name: "a\\nb"', "NOT_FOUND", naming(carried, v="a\nb")),
        ("v: shape [1,2,2,4], expected Nk = 3 as in k", "INVALID_ARGUMENT", naming(carried, v="short")),
        ("k: dtype, shape or data beside a name", "INVALID_ARGUMENT", both),
        ("options.mask.name", "INVALID_ARGUMENT", naming(masked, options__mask="mask")),
    ):
        code_and_words = refusal(wire.attend, stub, request)
        assert (code_and_words[0], words in code_and_words[1]) == (code, True), code_and_words
        with pytest.raises(wire.ProblemFailed) as caught:
            wire.attend_stream(stub, request)
        assert str(caught.value).partition(": ")[2] == code_and_words[1]


def half_put(server, bytes_sent):
    """A Put that has sent so much of 1 MiB, and the event that lets it go on to its end."""
    go_on = threading.Event()

    def messages():
        tensor = pb.Tensor(dtype=pb.DATA_TYPE_FLOAT32, shape=[1 << 18])
        yield store_pb2.PutTensorRequest(header=store_pb2.PutTensorHeader(name="half", tensor=tensor))
        if bytes_sent:
            yield store_pb2.PutTensorRequest(data=bytes(bytes_sent))
        go_on.wait(CALL_SECONDS_MAX)

    stub = store_pb2_grpc.StoreServiceStub(server.channel())
    return stub.PutTensor.future(messages(), timeout=CALL_SECONDS_MAX), go_on


@pytest.mark.parametrize(
    "end, words", [("stall", "receive_stall_ms"), ("short", "expected 1048576"), ("cancel", None)]
)
def test_a_put_that_does_not_end_leaves_nothing(end, words):
    stall = ["--receive_stall_ms=3000"] if end == "stall" else []  # the others have all the time that they need
    with AttndServer(*stall) as server, leaves_nothing(server):
        store = store_of(server)
        call, go_on = half_put(server, 1000)
        eventually("its memory is taken", lambda: memory_reserved(server) > 1 << 20)
        if end == "short":
            go_on.set()
        if end == "cancel":
            call.cancel()
        else:
            assert words in call.exception(timeout=CALL_SECONDS_MAX).details()
        go_on.set()
        eventually("and given back", lambda: memory_reserved(server) == 0)
        code, words = refusal(put, store, "long", np.zeros(4), pieces=2, append_axis=0, capacity=3)
        assert (code, "header.capacity" in words) == ("INVALID_ARGUMENT", True)
        assert len(store.ListTensors(store_pb2.ListTensorsRequest()).tensors) == 0


def names(store):
    return [tensor.name for tensor in store.ListTensors(store_pb2.ListTensorsRequest()).tensors]


def test_bytes_and_time_are_bounded():
    with AttndServer("--store_bytes_max=1000000") as server, leaves_nothing(server):
        store = store_of(server)
        put(store, "a", np.zeros(100_000))
        code, words = refusal(put, store, "b", np.zeros(200_000))
        assert (code, "of 1000000" in words and "store_bytes_max" in words) == ("RESOURCE_EXHAUSTED", True)
        put(store, "b", np.zeros(100_000), ttl_ms=100)
        eventually("what lives shortly goes", lambda: names(store) == ["a"])
        eventually("and its bytes", lambda: 400_000 <= memory_reserved(server) < 500_000)
        store.DeleteTensor(store_pb2.DeleteTensorRequest(name="a"))
    with AttndServer("--store_ttl_ms=500") as server, leaves_nothing(server):
        store = store_of(server)
        assert put(store, "a", np.zeros(100_000)).ttl_ms == 500
        eventually("what says nothing lives for the server's time", lambda: names(store) == [])


TOKENS = {name: f"token-of-{name}" for name in ("ann", "bob")}


def write_auth(path, ann=None, anonymous=None):
    """Everyone may call everything; what more the policies of ann and of those without a token say."""
    more = {"ann": ann or {}, "bob": {}}
    identities = [
        {"name": name, "tokens_sha256": [hashlib.sha256(token.encode()).hexdigest()], "methods": ["*"], **more[name]}
        for name, token in TOKENS.items()
    ]
    new = path.with_suffix(".new")
    new.write_text(json.dumps({"identities": identities, "anonymous": {"methods": ["*"], **(anonymous or {})}}))
    new.replace(path)


def test_an_identity_keeps_no_more_than_its_policy_says(tmp_path):
    path, limit = tmp_path / "auth.json", {"store_bytes_max": 1_000_000}
    write_auth(path, ann=limit, anonymous=limit)
    folder = tmp_path / "weights"
    folder.mkdir()
    arrays = weight_sets.weights(1)
    set_bytes = sum(4 * array.size for array in arrays.values())
    (folder / "a.safetensors").write_bytes(weight_sets.safetensors(arrays))
    (folder / "a.json").write_text(weight_sets.manifest("operators", 1, ["a.safetensors"]))
    with AttndServer(f"--auth_file={path}", f"--weights_dir={folder}", admin=True) as server:
        ann, bob, nobody = store_of(server, TOKENS["ann"]), store_of(server, TOKENS["bob"]), store_of(server)
        anns_sets, bobs_sets = (weight_sets.Store(server, token) for token in TOKENS.values())

        def is_full(store):
            code, words = refusal(put, store, "more", np.zeros(100_000))
            assert (code, "of 1000000 taken now (store_bytes_max of its policy)" in words) == (
                "RESOURCE_EXHAUSTED", True
            ), words
            return "bytes of tensor more, of this identity: " in words

        # Tensors and weight sets together; nobody else has less for it, and the operator's own are nobody's.
        anns_sets.put("hers", arrays)
        put(ann, "k", np.zeros(240_000 - set_bytes // 4))
        assert is_full(ann)
        code, words = refusal(anns_sets.put, "hers", arrays)
        assert (code, "weight set hers version 2, of this identity: " in words) == ("RESOURCE_EXHAUSTED", True), words
        code, words = refusal(put, ann, "never", np.zeros(250_001))
        assert (code, "1000000 allowed (store_bytes_max of its policy)" in words) == ("RESOURCE_EXHAUSTED", True)
        for name in ("k", "v"):
            put(bob, name, np.zeros(250_000))
        bobs_sets.put("his", arrays)
        put(nobody, "k", np.zeros(240_000))
        assert is_full(nobody)
        # /statusz says who holds what.
        page = re.sub("<[^>]*>", " ", server.admin("/statusz")[1])
        held = {name: int(count) for name, count in re.findall(r"\n *(ann|bob|anonymous|the operator) +(\d+)", page)}
        assert held["the operator"] == set_bytes
        assert 960_000 <= held["ann"] < 1_000_000 and 960_000 <= held["anonymous"] < 1_000_000
        assert 2_000_000 + set_bytes <= held["bob"] < 2_100_000
        # What is given back may be taken again. A new limit holds from then on, and takes nothing away.
        ann.DeleteTensor(store_pb2.DeleteTensorRequest(name="k"))
        put(ann, "k", np.zeros(200_000))
        write_auth(path, anonymous={"store_bytes_max": 1000})
        eventually("the new file is live", lambda: "auth file reloaded" in server.log())
        put(ann, "more", np.zeros(250_001))
        assert refusal(put, nobody, "v", np.zeros(1))[0] == "RESOURCE_EXHAUSTED"
        assert [t.name for t in nobody.ListTensors(store_pb2.ListTensorsRequest()).tensors] == ["k"]
    # What was put before a restart counts after it.
    write_auth(path, ann={"store_bytes_max": 2 * set_bytes - 1})
    with AttndServer(f"--auth_file={path}", f"--weights_dir={folder}") as server:
        anns_sets, bobs_sets = (weight_sets.Store(server, token) for token in TOKENS.values())
        assert refusal(anns_sets.put, "hers", arrays)[0] == "RESOURCE_EXHAUSTED"
        assert bobs_sets.put("his", arrays).version == 2


def test_names_are_their_owners_alone(tmp_path):
    path = tmp_path / "auth.json"
    write_auth(path)
    with AttndServer(f"--auth_file={path}") as server:
        ann, bob, nobody = store_of(server, TOKENS["ann"]), store_of(server, TOKENS["bob"]), store_of(server)
        put(ann, "k", np.full((1, 1, 1, 1), 1.0))
        put(bob, "k", np.full((1, 1, 1, 1), 2.0))
        one = np.ones((1, 1, 1, 1))
        named = naming(wire.request(one, one, one), v="k")
        stub = attention_pb2_grpc.AttentionServiceStub(server.channel())
        values = {
            name: np.frombuffer(
                stub.Attend(named, metadata=(("authorization", f"Bearer {token}"),)).output.data, "<f4"
            )[0]
            for name, token in TOKENS.items()
        }
        assert values == {"ann": 1.0, "bob": 2.0}
        assert refusal(stub.Attend, named)[0] == "NOT_FOUND"
        assert refusal(nobody.DeleteTensor, store_pb2.DeleteTensorRequest(name="k"))[0] == "NOT_FOUND"
        bob.DeleteTensor(store_pb2.DeleteTensorRequest(name="k"))
        assert [t.name for t in ann.ListTensors(store_pb2.ListTensorsRequest()).tensors] == ["k"]
        good_call(server)
