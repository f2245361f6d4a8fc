"""Answers in blocks: each element once, in its place; and problems that are more than a message holds."""

import numpy as np
import pytest

import attnd
from attnd_server import AttndServer, eventually

BLOCK_BYTES = 4096


@pytest.fixture(scope="module")
def small_blocks():
    with AttndServer(f"--block_bytes={BLOCK_BYTES}") as server, attnd.connect(server.address) as client:
        yield client


def problem(rows=300):
    draw = np.random.default_rng(6).standard_normal
    return [draw((2, 3, rows, 16)).astype(np.float32) for _ in range(3)]


def test_blocks_cover_every_tensor_once(small_blocks):
    q, k, v = problem()
    whole = small_blocks.attend(q, k, v, outputs=["weights", "lse"])
    tensors = {"output": whole.output, "weights": whole.weights, "lse": whole.lse[..., None]}
    seen = {name: np.zeros(tensor.shape, int) for name, tensor in tensors.items()}
    with small_blocks.attend_stream(q, k, v, outputs=["weights", "lse"]) as blocks:
        assert blocks.statistics is None
        for block in blocks:
            assert block.array.nbytes <= BLOCK_BYTES
            rows, columns = block.array.shape
            at = (
                block.batch,
                block.head,
                slice(block.first_row, block.first_row + rows),
                slice(block.first_column, block.first_column + columns),
            )
            assert block.array.tobytes() == tensors[block.output][at].tobytes()
            seen[block.output][at] += 1
    assert all((count == 1).all() for count in seen.values())
    assert blocks.statistics.q_offset == whole.statistics.q_offset == (0, 0)
    with pytest.raises(StopIteration):
        next(blocks)


def test_what_is_left_of_a_stream_is_no_answer(small_blocks):
    """An answer with blocks missing must not look like one."""
    with small_blocks.attend_stream(*problem()) as blocks:
        next(blocks)
        with pytest.raises(attnd.Internal, match="elements of output for"):
            blocks.answer()


def test_the_answer_is_the_same_bytes(small_blocks):
    q, k, v = problem()
    mask = np.random.default_rng(7).random((300, 300)) > 0.5
    keywords = {
        "mask": mask,
        "outputs": ["weights", "lse", "scores_dot"],
        "rotary": attnd.Rotary(8),
        "kv_len": 250,
        "q_len": 299,
        "priority": "high",
    }
    one, other = (small_blocks.attend(q, k, v, stream=stream, **keywords) for stream in (False, True))
    for name in ("output", "weights", "lse"):
        assert getattr(one, name).tobytes() == getattr(other, name).tobytes()
    assert one.scores["dot"].tobytes() == other.scores["dot"].tobytes()


def test_large_problems_travel_on_a_stream_by_themselves():
    """The server takes messages of 65 MiB, and none of these fits one: 66 MiB in, 72 MB out, and a bias of 72 MB."""
    with AttndServer(f"--message_bytes_max={65 << 20}") as server, attnd.connect(server.address) as client:
        k = np.random.default_rng(8).standard_normal((66, 4096, 64), np.float32)
        q = k[:, :1]
        answer = client.attend(q, k, k)
        with pytest.raises(attnd.ResourceExhausted):
            client.attend(q, k, k, stream=False)
        one = client.attend(q[5], k[5], k[5])
        assert answer.output[5].tobytes() == one.output.tobytes()
        weights = client.attend(k[:5, :1100, :4], k[:5, :, :4], k[:5, :, :4], outputs="weights").weights
        assert weights.shape == (5, 1100, 4096) and np.allclose(weights.sum(axis=2), 1)
        bias = np.zeros((5, 880, 4096), np.float32)
        biased = client.attend(k[:5, :880, :4], k[:5, :, :4], k[:5, :, :4], bias=bias)
        assert biased.output.shape == (5, 880, 4)


def test_a_refusal_has_the_same_words(client):
    q, k, v = problem()
    said = []
    for call in (
        lambda: client.attend(q, k[..., :5], v),
        lambda: client.attend(q, k[..., :5], v, stream=True),
        lambda: next(client.attend_stream(q, k[..., :5], v)),
    ):
        with pytest.raises(attnd.InvalidArgument) as caught:
            call()
        said.append(str(caught.value))
    assert set(said) == {"k: shape [2,3,300,5], expected d_k = 16 as in q"}


def test_a_stream_that_is_left_stops_the_work():
    with AttndServer() as server, attnd.connect(server.address) as client:
        k = np.zeros((8, 30000, 64), np.float32)
        with client.attend_stream(k, k, k) as blocks:
            next(blocks)
        eventually("nothing is held", lambda: client.info().memory_bytes_used == 0)
        with pytest.raises(attnd.Cancelled):
            list(blocks)
        assert not client.attend(k[:1, :4], k[:1, :4], k[:1, :4]).output.any()
