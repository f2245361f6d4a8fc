"""The lesson the project starts from: three tokens by hand, and five tokens from X and projection weights."""

import pathlib

import numpy as np
import pytest

import oracle
import wire

calls = pytest.mark.parametrize("call", wire.CALLS)
modes = pytest.mark.parametrize("reference", [False, True], ids=["tiled", "reference"])
Q = [1, 0, 0.5, 1]  # "it"
K = [[1, 0, 0.8, 1], [0, 1, 0.2, 0], [0.2, 0.2, 0.4, 0.1]]  # server, request, it
V = [[0.9, 0.1, 0.7, 0.8], [0.1, 0.9, 0.2, 0.1], [0.3, 0.3, 0.5, 0.2]]
NPZ = pathlib.Path(__file__).parent / "lesson_five_tokens.npz"


@calls
@modes
def test_three_tokens_step_by_step(stub, call, reference):
    q, k, v = (np.array(t).reshape(1, 1, -1, 4) for t in (Q, K, V))
    answer = wire.CALLS[call](
        stub, wire.request(q, k, v, outputs=("scores_dot", "scores_scaled", "weights"), reference=reference)
    )
    for name, printed, digits in (
        ("scores_dot", [2.40, 0.10, 0.50], 2),
        ("scores_scaled", [1.20, 0.05, 0.25], 2),
        ("weights", [0.5871, 0.1859, 0.2270], 4),
        ("output", [0.6151, 0.2941, 0.5616, 0.5337], 4),
    ):
        assert np.round(answer[name].ravel().astype(np.float64), digits).tolist() == pytest.approx(
            printed, abs=1e-9
        ), name


@calls
@modes
@pytest.mark.parametrize("transposed", [False, True])
def test_five_tokens_from_x(stub, call, reference, transposed):
    given = np.load(NPZ)
    weights = {f"w_{n.lower()}": given[f"W_{n}"].T if transposed else given[f"W_{n}"] for n in "QKV"}
    dtype = "float64" if reference else "float32"
    message = wire.request(
        x=given["X"][None],
        projection=wire.projection(1, 1, dtype=dtype, transposed=transposed, **weights),
        dtype=dtype,
        outputs=("weights", "lse", "projected_q", "projected_k", "projected_v"),
        reference=reference,
    )
    answer = wire.CALLS[call](stub, message)
    # Sums of 64 products of values under 0.4 and 0.2, then five keys: float32's own rounding, with room.
    slack = 1e-12 if reference else 2e-6
    for name, stated in (
        ("output", "O"),
        ("lse", "LSE"),
        ("weights", "W"),
        ("projected_q", "Q"),
        ("projected_k", "K"),
        ("projected_v", "V"),
    ):
        rounding = 2.0**-24 * np.abs(given[stated]) if answer[name].dtype == np.float32 else 0
        oracle.assert_close(name, answer[name].reshape(given[stated].shape), given[stated], slack + rounding)
