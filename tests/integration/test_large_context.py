"""N = 65,536 on a stream: a score matrix of 17 GB that never exists. Memory stays near the problem's own tensors."""

import numpy as np

import wire
from aftermath import good_call, leaves_nothing
from attnd_server import AttndServer

ROWS, WIDTH = 65_536, 64


def test_memory_is_the_problems_own():
    rng = np.random.default_rng(51)
    q, k, v = (rng.standard_normal((1, 1, ROWS, WIDTH), np.float32) for _ in range(3))
    with AttndServer("--compute_ms_max=3600000") as server, leaves_nothing(server):
        idle = server.resident_bytes()
        answer = wire.attend_stream(
            server.stub(), wire.request(q, k, v, outputs=("lse",)), timeout=3600, piece_bytes=1 << 20
        )
        peak = server.peak_resident_bytes()
        tensors = 4 * q.nbytes
        assert peak - idle <= 2 * tensors + (64 << 20)
        # Rows spread over the whole, against float64.
        for row in (0, ROWS // 3, ROWS - 1):
            scores = q[0, 0, row].astype(np.float64) @ k[0, 0].astype(np.float64).T / 8
            powers = np.exp(scores - scores.max())
            right = powers @ v[0, 0].astype(np.float64) / powers.sum()
            assert np.abs(answer["output"][0, 0, row] - right).max() < 1e-5
            assert abs(answer["lse"][0, 0, row] - scores.max() - np.log(powers.sum())) < 1e-5
        good_call(server)
