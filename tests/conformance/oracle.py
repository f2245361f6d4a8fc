"""The attention formula in NumPy float64, written from the contract alone, and how far an answer may be from it.

Shapes: q [B, Hq, Nq, d_k], k [B, Hkv, Nk, d_k], v [B, Hkv, Nk, d_v]. Nothing here is shared with the code under test.
"""

import dataclasses

import numpy as np

# Significant bits of a float type: one rounding moves a value by at most 2^-bits of it.
SIGNIFICANT_BITS = {"float64": 53, "float32": 24, "float16": 11, "bfloat16": 8}
SMALLEST_ROUNDING = {"float64": 0.0, "float32": 2.0**-126, "float16": 2.0**-25, "bfloat16": 2.0**-126}


@dataclasses.dataclass
class Right:
    """Right values of one problem, with the sizes that the tolerances are made of."""

    output: np.ndarray  # [B, Hq, Nq, d_v]
    weights: np.ndarray  # [B, Hq, Nq, Nk]
    lse: np.ndarray  # [B, Hq, Nq]
    scores: dict  # "dot", "scaled", "capped", "biased": [B, Hq, Nq, Nk], -inf where excluded
    allowed: np.ndarray  # [B, Hq, Nq, Nk] bool
    magnitude: np.ndarray  # A: the row's largest |scale| * sum |q||k| + |bias| + slope * |p - j|: [B, Hq, Nq]
    dot_magnitude: np.ndarray  # the row's largest sum |q||k|: [B, Hq, Nq]
    value_max: np.ndarray  # largest finite |v| among the row's allowed keys: [B, Hq, Nq]


def broadcast(array, shape):
    """Right-aligned to [B, Hq, Nq, Nk]."""
    return np.broadcast_to(np.asarray(array), shape)


def rotate(x, positions, rotary_dim, base, style):
    """x: [B, H, N, d]; positions: [B, N]."""
    half = rotary_dim // 2
    angle = positions[:, None, :, None] * base ** (-2.0 * np.arange(half) / rotary_dim)  # [B, 1, N, half]
    first, second = (
        (slice(0, half), slice(half, rotary_dim))
        if style == "half"
        else (slice(0, rotary_dim, 2), slice(1, rotary_dim, 2))
    )
    out = x.copy()
    out[..., first] = x[..., first] * np.cos(angle) - x[..., second] * np.sin(angle)
    out[..., second] = x[..., second] * np.cos(angle) + x[..., first] * np.sin(angle)
    return out


def attention(
    q,
    k,
    v,
    *,
    scale=None,
    causal=False,
    q_offset=None,
    q_len=None,
    kv_len=None,
    window_left=None,
    window_right=None,
    mask=None,
    bias=None,
    softcap=None,
    alibi_slopes=None,
    sinks=None,
    rotary=None,
):
    q, k, v = (np.asarray(t, np.float64) for t in (q, k, v))
    batch, q_heads, q_rows, d_k = q.shape
    kv_heads, kv_rows, d_v = k.shape[1], k.shape[2], v.shape[3]
    full = (batch, q_heads, q_rows, kv_rows)
    q_len = np.full(batch, q_rows) if q_len is None else np.asarray(q_len)
    kv_len = np.full(batch, kv_rows) if kv_len is None else np.asarray(kv_len)
    q_offset = kv_len - q_len if q_offset is None else np.asarray(q_offset)
    scale = 1 / np.sqrt(d_k) if scale is None else scale
    position = np.arange(q_rows)[None, :] + q_offset[:, None]  # p: [B, Nq]
    key = np.arange(kv_rows)  # j: [Nk]
    if rotary is not None:
        q = rotate(q, rotary.get("q_positions", position), rotary["dim"], rotary.get("base", 10000.0), rotary["style"])
        k = rotate(
            k,
            rotary.get("k_positions", np.tile(key, (batch, 1))),
            rotary["dim"],
            rotary.get("base", 10000.0),
            rotary["style"],
        )
    k, v = (np.repeat(t, q_heads // kv_heads, axis=1) for t in (k, v))  # head h reads kv head h // (Hq / Hkv)

    p = position[:, None, :, None]
    allowed = np.broadcast_to(key < kv_len[:, None, None, None], full).copy()
    if causal:
        allowed &= key <= p
    if window_left is not None:
        allowed &= key >= p - window_left
    if window_right is not None:
        allowed &= key <= p + window_right
    if mask is not None:
        allowed &= broadcast(mask, full).astype(bool)
    if bias is not None:
        allowed &= broadcast(bias, full) != -np.inf
    in_length = np.broadcast_to((np.arange(q_rows) < q_len[:, None])[:, None, :], full[:3])  # [B, Hq, Nq]
    allowed &= in_length[..., None]

    with np.errstate(all="ignore"):
        dot = q @ k.swapaxes(2, 3)
        steps = {"dot": dot, "scaled": dot * scale}
        s = steps["scaled"]
        if softcap is not None:
            s = softcap * np.tanh(s / softcap)
        steps["capped"] = s
        dot_magnitude = np.abs(q) @ np.abs(k).swapaxes(2, 3)
        magnitude = abs(scale) * dot_magnitude
        if alibi_slopes is not None:
            distance = np.asarray(alibi_slopes, np.float64)[:, None, None] * np.abs(p - key)
            s, magnitude = s - distance, magnitude + np.abs(distance)
        if bias is not None:
            wide = broadcast(bias, full).astype(np.float64)
            s, magnitude = s + wide, magnitude + np.abs(wide)
        steps["biased"] = s
        steps = {name: np.where(allowed, values, -np.inf) for name, values in steps.items()}
        output, weights, lse = _rows(np.where(allowed, s, -np.inf), allowed, in_length, v, sinks)
    return Right(
        output,
        weights,
        lse,
        steps,
        allowed,
        _row_max(allowed, magnitude),
        _row_max(allowed, dot_magnitude),
        _value_max(allowed, v),
    )


def _rows(s, allowed, in_length, v, sinks):
    """Softmax and weighted sum, row by row, by selection: what is excluded takes no part in any product."""
    output = np.zeros(s.shape[:3] + v.shape[3:])
    weights = np.zeros(s.shape)
    lse = np.full(s.shape[:3], -np.inf)
    for b, h, i in np.ndindex(*s.shape[:3]):
        chosen = allowed[b, h, i]
        sink = -np.inf if sinks is None else float(sinks[h])
        if not in_length[b, h, i]:
            continue
        if not chosen.any():
            lse[b, h, i] = sink
            continue
        logits = s[b, h, i, chosen]
        m = np.max(np.append(logits, sink))  # NaN passes through
        powers = np.exp(logits - m)
        total = powers.sum() + np.exp(sink - m)
        output[b, h, i] = powers @ v[b, h, chosen] / total
        weights[b, h, i, chosen] = powers / total
        lse[b, h, i] = m + np.log(total)
    return output, weights, lse


def _row_max(allowed, values):
    """[B, Hq, Nq]: the largest finite value over a row's allowed keys; 0 where there is none."""
    return np.where(allowed & np.isfinite(values), values, 0.0).max(axis=-1, initial=0.0)


def _value_max(allowed, v):
    """[B, Hq, Nq]: largest finite |v| over the allowed keys."""
    largest = np.where(np.isfinite(v), np.abs(v), 0.0).max(axis=-1, initial=0.0)  # [B, Hq, Nk]
    return np.where(allowed, largest[:, :, None, :], 0.0).max(axis=-1, initial=0.0)


def assert_close(name, got, right, tolerance):
    """Equal NaNs and infinities, and no further than tolerance where finite."""
    got, right = np.asarray(got, np.float64), np.asarray(right, np.float64)
    assert got.shape == right.shape, f"{name}: shape {got.shape}, expected {right.shape}"
    tolerance = np.broadcast_to(tolerance, right.shape)
    with np.errstate(all="ignore"):
        good = (got == right) | (np.isnan(got) & np.isnan(right)) | (np.abs(got - right) <= tolerance)
    if not good.all():
        at = tuple(np.argwhere(~good)[0])
        raise AssertionError(
            f"{name}: {np.count_nonzero(~good)} of {good.size} wrong, first at {at}: got {got[at]!r}, "
            f"expected {right[at]!r} within {tolerance[at]:.3g}"
        )


def assert_answer(answer, right, output_dtype="float32", reference=False):
    """Holds every tensor of an answer ({"output": ..., "weights": ...}) to its tolerance."""
    size = 4 + right.magnitude
    unit = 64 * 2.0**-53 if reference else 8 * 2.0**-24  # reference mode: what is left is the reply's own rounding
    tiny = 2.0**-126
    for name, got in answer.items():
        if name == "output":
            # float32's rounding is inside the tiled bound already.
            rounds = reference or output_dtype != "float32"
            rounding = _finite(right.output) * 2.0 ** -SIGNIFICANT_BITS[output_dtype] if rounds else 0.0
            tolerance = (unit * size * right.value_max)[..., None] + rounding + SMALLEST_ROUNDING[output_dtype]
            assert_close(name, got, right.output, tolerance + tiny)
        elif name == "weights":
            rounding = _finite(right.weights) * 2.0**-24 if reference else 0.0
            assert_close(name, got, right.weights, unit * size[..., None] + rounding + tiny)
            assert np.all(np.asarray(got)[~right.allowed] == 0), "weights: an excluded entry is not exactly 0"
        elif name == "lse":
            assert_close(name, got, right.lse, (unit if reference else 1e-6) * size + tiny)
        else:
            expected = right.scores[name.removeprefix("scores_")]
            size_of_scores = right.dot_magnitude if name == "scores_dot" else right.magnitude
            rounding = _finite(expected) * 2.0**-24 if reference else 0.0
            assert_close(name, got, expected, unit * (1 + size_of_scores)[..., None] + rounding + tiny)


def _finite(values):
    """Magnitudes, 0 where there is none."""
    return np.where(np.isfinite(values), np.abs(values), 0.0)
