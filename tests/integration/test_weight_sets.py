"""Weight sets by name: the same bytes as with the weights inline, whoever asks, whatever happens to the name."""

import hashlib
import json
import threading

import grpc
import numpy as np
import pytest

import wire
from attnd.v1 import attention_pb2 as pb
from attnd.v1 import store_pb2, store_pb2_grpc
from attnd_server import CALL_SECONDS_MAX, AttndServer, eventually
from weight_sets import X, Store, inline, named, projection, weights

ROTARY = pb.Rotary(style=pb.ROTARY_STYLE_HALF, rotary_dim=16, rope_base=500000)


@pytest.fixture(scope="module")
def server():
    """Of its own: what is put stays."""
    with AttndServer() as running:
        yield running


@pytest.fixture(scope="module")
def store(server):
    return Store(server)


def refused(code, *words):
    """Expects a refusal of this code with these words in it."""

    class Refused:
        def __enter__(self):
            return self

        def __exit__(self, kind, error, trace):
            assert kind is not None, f"expected {code}"
            if not issubclass(kind, grpc.RpcError):
                return False
            assert (error.code(), [word for word in words if word not in error.details()]) == (code, []), error
            return True

    return Refused()


INVALID = grpc.StatusCode.INVALID_ARGUMENT


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("transposed", [False, True], ids=["in-out", "out-in"])
@pytest.mark.parametrize("call", wire.CALLS)
def test_the_bytes_are_those_of_the_weights_sent_inline(store, call, transposed, dtype):
    arrays = weights(1)
    name = f"same.{dtype}.{call}.{transposed}".lower()
    stored = store.put(name, arrays, dtype=dtype, transposed=transposed)
    right = wire.attend(store.attention, inline(arrays, dtype, causal=True)).raw
    assert wire.CALLS[call](store.attention, named(name, causal=True)).raw == right
    # What it says of itself: shapes as [in, out], no bytes.
    assert (stored.name, stored.version, stored.from_file, stored.calls) == (name, 1, False, 0)
    assert stored.bytes == sum(array.size for array in arrays.values()) * np.dtype(wire.STORAGE[dtype]).itemsize
    for role, array in arrays.items():
        tensor = getattr(stored.projection, role)
        assert (tuple(tensor.shape), tensor.dtype, tensor.data) == (array.shape, wire.DTYPES[dtype], b"")
    eventually("no call reads it", lambda: store.get(name) == stored)


def test_large_matrices_are_turned_in_blocks(store):
    """Rows of 200 KB: a block of a matrix that comes as [out, in] holds a few, the last one fewer."""
    rng = np.random.default_rng(3)
    d_model, heads = 50001, 1
    arrays = {role: rng.standard_normal((d_model, 13)) / 300 for role in ("w_q", "w_k", "w_v")}
    x = rng.standard_normal((1, 2, d_model))
    store.put("wide", message=wire.projection(heads, heads, transposed=True, **{r: a.T for r, a in arrays.items()}))
    request = wire.request(x=x, projection=wire.projection(heads, heads, **arrays))
    right = wire.attend(store.attention, request).raw
    request.ClearField("projection")
    request.weight_set.name = "wide"
    assert wire.attend(store.attention, request).raw == right


def test_only_what_is_needed(store):
    arrays = weights(2, ("w_q", "w_k", "w_v"))
    store.put("bare", arrays)
    assert store.answer("bare") == wire.attend(store.attention, inline(arrays)).raw
    assert not store.get("bare").projection.HasField("w_o")


def test_a_set_has_a_rotary_embedding_of_its_own(store):
    arrays = weights(4)
    stored = store.put("turned", arrays, rotary=ROTARY)
    assert stored.rotary == ROTARY
    rotary = {"style": "half", "dim": 16, "base": 500000}
    right = wire.attend(store.attention, inline(arrays, rotary=rotary)).raw
    assert store.answer("turned") == right != wire.attend(store.attention, inline(arrays)).raw
    other = {**rotary, "base": 10000, "q_positions": np.arange(5, 5 + X.shape[1])[None].repeat(2, 0)}
    assert store.answer("turned", rotary=other) == wire.attend(store.attention, inline(arrays, rotary=other)).raw
    store.put("straight", arrays)
    assert store.answer("straight", rotary=rotary) == right


@pytest.mark.parametrize("transposed", [False, True], ids=["in-out", "out-in"])
def test_its_tensors_may_be_stored_ones(server, store, transposed):
    arrays = weights(7)
    message = projection(arrays, transposed=transposed)
    tensors = store_pb2_grpc.StoreServiceStub(server.channel())
    for role in ("w_q", "b_k"):
        header = store_pb2.PutTensorHeader(name=f"stored.{role}", tensor=getattr(message, role))
        tensors.PutTensor(iter([store_pb2.PutTensorRequest(header=header)]), timeout=CALL_SECONDS_MAX)
        getattr(message, role).CopyFrom(pb.Tensor(name=f"stored.{role}"))
    name = f"of-stored.{transposed}".lower()
    store.put(name, message=message)
    for role in ("w_q", "b_k"):  # it has copies
        tensors.DeleteTensor(store_pb2.DeleteTensorRequest(name=f"stored.{role}"), timeout=CALL_SECONDS_MAX)
    assert store.answer(name) == wire.attend(store.attention, inline(arrays)).raw


def test_versions(store):
    old, new = weights(5), weights(6)
    right = [wire.attend(store.attention, inline(arrays)).raw for arrays in (old, new)]
    assert store.put("versions", old).version == 1
    assert store.put("versions", new, version=7).version == 7
    assert store.put("versions", old).version == 8
    assert [store.answer("versions", version) for version in (1, 7, 8, 0)] == [right[0], right[1], right[0], right[0]]
    with refused(grpc.StatusCode.ALREADY_EXISTS, "version", "versions version 7"):
        store.put("versions", new, version=7)
    store.delete("versions", 8)
    assert store.answer("versions") == right[1]
    assert [found for found in store.list() if found[0] == "versions"] == [("versions", 1), ("versions", 7)]
    store.delete("versions")
    for attempt in (lambda: store.answer("versions"), lambda: store.get("versions"), lambda: store.delete("versions")):
        with refused(grpc.StatusCode.NOT_FOUND, "no weight set versions"):
            attempt()
    with refused(grpc.StatusCode.NOT_FOUND, "weight_set.name: no weight set bare2 version 3"):
        store.answer("bare2", 3)


def change(message, role, **fields):
    tensor = getattr(message, role)
    for field, value in fields.items():
        if field == "shape":
            del tensor.shape[:]
            tensor.shape.extend(value)
        else:
            setattr(tensor, field, value)


def without(message, role):
    message.ClearField(role)


WRONG = {
    "no w_k": (lambda m: without(m, "w_k"), "projection.w_k: missing"),
    "heads": (lambda m: setattr(m, "kv_heads", 3), "projection.kv_heads: 3"),
    "no heads": (lambda m: setattr(m, "q_heads", 0), "projection.q_heads: 0"),
    "bytes": (lambda m: change(m, "w_v", data=b"1234"), "projection.w_v: 4 bytes"),
    "shape": (lambda m: change(m, "w_k", shape=[96, 24]), "projection.w_k: shape [96,24], expected d_model = 48"),
    "rank": (lambda m: change(m, "b_q", shape=[2, 48]), "projection.b_q: shape [2,48], expected 1 dimension"),
    "type": (lambda m: change(m, "b_o", dtype=pb.DATA_TYPE_INT64, data=bytes(320)), "projection.b_o: dtype int64"),
    "bias alone": (lambda m: without(m, "w_o"), "projection.b_o: given without projection.w_o"),
    "nobody's tensor": (lambda m: m.w_q.CopyFrom(pb.Tensor(name="no-such")), "projection.w_q.name"),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_weights_that_do_not_agree_are_refused(store, wrong):
    break_it, words = WRONG[wrong]
    message = projection(weights(8))
    break_it(message)
    with pytest.raises(grpc.RpcError) as error:
        store.put("wrong", message=message)
    assert error.value.code() in (INVALID, grpc.StatusCode.NOT_FOUND) and words in error.value.details(), error.value
    assert "wrong" not in dict(store.list())


def test_names_versions_and_rotary_that_mean_nothing(store):
    arrays = weights(9)
    for name in ("", "A", "a/b", "../a", "a" * 65, "a\0"):
        with refused(INVALID, "name:"):
            store.put(name, arrays)
        with refused(INVALID, "weight_set.name:"):
            store.answer(name)
    with refused(INVALID, "version: -1"):
        store.put("minus", arrays, version=-1)
    with refused(INVALID, "float64"):
        store.put("doubles", arrays, dtype="float64")
    with refused(INVALID, "rotary.rotary_dim: 99"):
        store.put("wide-turn", arrays, rotary=pb.Rotary(style=pb.ROTARY_STYLE_HALF, rotary_dim=99))
    positions = pb.Rotary(style=pb.ROTARY_STYLE_HALF, rotary_dim=8, q_positions=wire.tensor(np.zeros((1, 1)), "int64"))
    with refused(INVALID, "rotary: with positions"):
        store.put("positions", arrays, rotary=positions)


def test_requests_that_contradict_themselves(store):
    arrays = weights(10)
    store.put("once", arrays)
    both = named("once")
    both.projection.CopyFrom(projection(arrays))
    with refused(INVALID, "weight_set: given together with projection"):
        wire.attend(store.attention, both)
    alone = named("once")
    alone.ClearField("x")
    with refused(INVALID, "weight_set: given without x"):
        wire.attend(store.attention, alone)


def test_a_plan_counts_no_weights_among_the_requests_bytes(store):
    arrays = weights(11)
    store.put("planned", arrays)
    plan = {}
    for kind, request in (("inline", inline(arrays)), ("named", named("planned"))):
        for tensor in [request.x] + [getattr(request.projection, role) for role in arrays if kind == "inline"]:
            tensor.ClearField("data")
        plan[kind] = store.attention.Plan(pb.PlanRequest(problem=request))
    weights_bytes = store.get("planned").bytes
    assert plan["named"].request_bytes == plan["inline"].request_bytes - weights_bytes
    assert plan["named"].memory_bytes == plan["inline"].memory_bytes - weights_bytes
    assert plan["named"].flops == plan["inline"].flops


def test_what_does_not_fit_the_store_is_refused_and_leaves_nothing():
    arrays = weights(12)
    with AttndServer("--store_bytes_max=100000", admin=True) as server:
        store = Store(server)
        first = store.put("first", arrays).bytes
        with refused(grpc.StatusCode.RESOURCE_EXHAUSTED, "store_bytes_max", f"{2 * first} of 100000"):
            for _ in range(9):
                store.put("more", arrays)
        names = [name for name, _ in store.list()]
        store.delete("more")
        assert store.put("more", arrays).version == 1
        with refused(grpc.StatusCode.RESOURCE_EXHAUSTED, "200000", "100000 allowed (store_bytes_max)"):
            giant = {"w_q": np.zeros((5, 4000)), "w_k": np.zeros((5, 4000)), "w_v": np.zeros((5, 2000))}
            store.put("giant", message=wire.projection(1, 1, **giant))
        assert "giant" not in names
        page = server.admin("/metrics")[1]
        assert f"attnd_store_used_bytes {2 * first}" in page and "attnd_weight_sets 2" in page


def test_a_name_changes_under_load_in_one_step(store):
    """Callers ask all the time; each answer is whole, of one version or the next, and none goes back."""
    sets = [weights(seed) for seed in range(20, 26)]
    right = [wire.attend(store.attention, inline(arrays)).raw for arrays in sets]
    store.put("live", sets[0])
    seen, wrong, stop = [[], [], []], [], threading.Event()

    def ask(mine):
        while not stop.is_set():
            try:
                mine.append(right.index(store.answer("live")))
            except BaseException as error:
                wrong.append(error)
                return

    callers = [threading.Thread(target=ask, args=(mine,)) for mine in seen]
    for caller in callers:
        caller.start()
    for version, arrays in enumerate(sets[1:], start=1):
        eventually("callers see it", lambda: wrong or all(mine and mine[-1] == version - 1 for mine in seen))
        store.put("live", arrays)
        if version > 2:
            store.delete("live", version - 1)
    eventually("all see the last", lambda: wrong or all(mine[-1] == len(sets) - 1 for mine in seen))
    stop.set()
    for caller in callers:
        caller.join()
    assert not wrong and all(mine == sorted(mine) for mine in seen)


def test_owners(tmp_path):
    tokens = {"alice": "a-secret", "bob": "b-secret"}
    identities = [
        {"name": name, "tokens_sha256": [hashlib.sha256(token.encode()).hexdigest()], "methods": ["*"]}
        for name, token in tokens.items()
    ]
    (tmp_path / "auth.json").write_text(json.dumps({"identities": identities}))
    arrays, denied = weights(30), grpc.StatusCode.PERMISSION_DENIED
    with AttndServer(f"--auth_file={tmp_path / 'auth.json'}") as server:
        alice, bob = (Store(server, token) for token in tokens.values())
        assert alice.put("hers", arrays).owner == "alice"
        assert bob.get("hers").owner == "alice"  # everyone may use it
        for attempt in (lambda: bob.put("hers", arrays), lambda: bob.delete("hers"), lambda: bob.delete("hers", 1)):
            with refused(denied, "another identity"):
                attempt()
        assert alice.put("hers", arrays).version == 2
        alice.delete("hers")
        assert bob.put("hers", arrays).owner == "bob"
