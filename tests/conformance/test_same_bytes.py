"""A row's bytes depend on its own sequence and options alone: not on threads, batch mates, pieces or the call used."""

import numpy as np
import pytest

import wire
from attnd_server import AttndServer

OUTPUTS = ("weights", "lse", "scores_dot", "scores_scaled")


def problems():
    """Each crosses tile edges in its own way."""
    rng = np.random.default_rng(21)

    def tensors(batch, q_heads, kv_heads, q_rows, kv_rows, d_k, d_v):
        return (
            rng.standard_normal((batch, q_heads, q_rows, d_k)),
            rng.standard_normal((batch, kv_heads, kv_rows, d_k)),
            rng.standard_normal((batch, kv_heads, kv_rows, d_v)),
        )

    yield "plain", wire.request(*tensors(1, 2, 2, 300, 520, 64, 64), outputs=OUTPUTS)
    yield "grouped causal", wire.request(*tensors(2, 4, 2, 129, 257, 40, 33), causal=True, outputs=OUTPUTS)
    yield "one row", wire.request(*tensors(3, 8, 2, 1, 1000, 64, 64), outputs=OUTPUTS)
    yield "float16", wire.request(*tensors(1, 2, 2, 65, 300, 32, 16), dtype="float16", outputs=OUTPUTS)
    yield "masked", wire.request(
        *tensors(2, 2, 2, 70, 300, 16, 16),
        mask=rng.random((2, 1, 70, 300)) < 0.5,
        bias=rng.standard_normal((2, 70, 300)),
        outputs=OUTPUTS,
    )
    yield "lengths", wire.request(
        *tensors(3, 2, 1, 70, 300, 16, 16), q_len=[70, 1, 33], kv_len=[300, 0, 257], causal=True, outputs=OUTPUTS
    )
    table = rng.permutation(13)[:10].reshape(2, 5)
    table[1, :2] = table[0, :2]
    yield "pages", wire.request(
        rng.standard_normal((2, 4, 40, 24)),
        rng.standard_normal((13, 2, 48, 24)),
        rng.standard_normal((13, 2, 48, 17)),
        page_table=table,
        kv_len=[240, 100],
        q_len=[40, 3],
        outputs=OUTPUTS,
    )
    weights = {name: rng.standard_normal((48, 64)) / 7 for name in ("w_q", "w_k", "w_v")}
    yield "projected", wire.request(
        x=rng.standard_normal((2, 150, 48)),
        outputs=OUTPUTS + ("projected_q", "projected_k", "projected_v"),
        projection=wire.projection(4, 4, **weights, w_o=rng.standard_normal((64, 24)) / 8),
    )


PROBLEMS = dict(problems())


@pytest.fixture(scope="module", params=[1, 2, 4], ids=lambda threads: f"{threads}-threads")
def threaded_stub(request):
    with AttndServer(f"--threads={request.param}") as server:
        yield server.stub()


@pytest.fixture(scope="module")
def expected(stub):
    """The bytes from the session's own server."""
    return {name: wire.attend(stub, message).raw for name, message in PROBLEMS.items()}


@pytest.mark.parametrize("name", PROBLEMS)
def test_threads_change_no_byte(threaded_stub, expected, name):
    assert wire.attend(threaded_stub, PROBLEMS[name]).raw == expected[name]


@pytest.mark.parametrize("name", PROBLEMS)
@pytest.mark.parametrize(
    "pieces",
    [
        {"piece_bytes": 1 << 20},
        {"piece_bytes": 4093},
        {"piece_bytes": 10007, "shuffle": 3},
        {"inline": ("k", "x", "options.mask")},
    ],
    ids=["whole", "odd", "shuffled", "inline"],
)
def test_the_stream_and_its_pieces_change_no_byte(stub, expected, name, pieces):
    assert wire.attend_stream(stub, PROBLEMS[name], **pieces).raw == expected[name]


def test_problems_on_one_stream_change_no_byte(stub, expected):
    names = [name for name in PROBLEMS for _ in range(2)]
    for name, answer in zip(names, wire.attend_many(stub, [PROBLEMS[name] for name in names])):
        assert not isinstance(answer, Exception), answer
        assert answer.raw == expected[name]


@pytest.mark.parametrize("name", ["plain", "grouped causal", "masked", "lengths"])
def test_a_sequence_alone_has_the_bytes_it_has_in_a_batch(stub, expected, name):
    message = PROBLEMS[name]
    whole = wire.attend(stub, message)
    for b in range(message.q.shape[0]):
        alone = wire.attend(stub, one_sequence(message, b))
        for output in ("output", *OUTPUTS):
            assert alone[output].tobytes() == whole[output][b : b + 1].tobytes(), (b, output)


def one_sequence(message, b):
    """The request with only its b-th sequence."""
    single = type(message)()
    single.CopyFrom(message)
    batch = message.q.shape[0]
    for _, tensor in wire.tensor_fields(single):
        if len(tensor.shape) == 4 and tensor.shape[0] == batch:
            part = len(tensor.data) // batch
            tensor.data = tensor.data[b * part : (b + 1) * part]
            tensor.shape[0] = 1
    for field in ("q_len", "kv_len", "q_offset"):
        values = getattr(single.options, field)
        if values:
            values[:] = [values[b]]
    return single


@pytest.mark.parametrize("name", PROBLEMS)
def test_what_else_is_asked_for_changes_no_byte(stub, expected, name):
    """The output without weights is the output with them, and the other way round."""
    bare = type(PROBLEMS[name])()
    bare.CopyFrom(PROBLEMS[name])
    del bare.outputs[:]
    answer = wire.attend(stub, bare)
    assert set(answer.raw) == {"output"}
    assert answer.raw["output"] == expected[name]["output"]
    bare.outputs.append(wire.OUTPUTS["weights"])
    assert wire.attend(stub, bare).raw["weights"] == expected[name]["weights"]


@pytest.mark.parametrize("name", ["plain", "grouped causal", "masked"])
def test_some_rows_alone_have_the_bytes_they_have_together(stub, expected, name):
    """Rows of the queries, at their own place, give those rows of the whole (masks are cut with them). Not fewer than
    five: a sequence of up to four queries is computed in another way, and q_len may decide that."""
    message = PROBLEMS[name]
    whole = wire.attend(stub, message)
    rows, offset = message.q.shape[2], message.k.shape[2] - message.q.shape[2]
    for first, end in ((0, 5), (1, 8), (rows - 5, rows)):
        some = type(message)()
        some.CopyFrom(message)
        for field, tensor in wire.tensor_fields(some):
            if field == "q" or (field.startswith("options.") and tensor.shape[-2] == rows):
                width = {wire.pb.DATA_TYPE_FLOAT32: 4, wire.pb.DATA_TYPE_BOOL: 1}[tensor.dtype]
                values = np.frombuffer(tensor.data, f"V{width}").reshape(tensor.shape)[..., first:end, :]
                tensor.data = values.tobytes()
                tensor.shape[len(tensor.shape) - 2] = end - first
        some.options.q_offset.extend([offset + first] * message.q.shape[0])
        answer = wire.attend(stub, some)
        for output in ("output", *OUTPUTS):
            assert answer[output].tobytes() == whole[output][:, :, first:end].tobytes(), (first, output)
