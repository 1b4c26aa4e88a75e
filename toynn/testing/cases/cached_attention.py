"""cached_attention against softmax(scale q k^T) v over the whole past, in float64."""

import math

import numpy as np

from toynn.testing.cases._case import Array, Call, OpCase, call

BLOCK = 64  # keys, in the cache of keys


def _blocked(keys: Array) -> Array:
    """Turn keys (B, KV, S, D) into blocks (B, KV, S / 64, D, 64)."""
    B, KV, S, D = keys.shape
    return keys.reshape(B, KV, S // BLOCK, BLOCK, D).swapaxes(3, 4)


def _attend(q: Array, keys: Array, values: Array) -> Array:
    """Return o (T, H D) of the last T rows q (T, H D) of a sequence of keys (KV, T', D)."""
    KV, total, D = keys.shape
    T, columns = q.shape
    group = columns // D // KV
    seen = np.tri(T, total, total - T, dtype=bool)
    o = np.empty((T, columns // D, D))
    for h in range(columns // D):
        scores = q.reshape(o.shape)[:, h] @ keys[h // group].T / math.sqrt(D)
        p = np.exp(np.where(seen, scores, -np.inf) - scores.max(axis=1, keepdims=True))
        o[:, h] = p / p.sum(axis=1, keepdims=True) @ values[h // group]
    return o.reshape(q.shape)


def _calls(
    rng: np.random.Generator, B: int, T: int, H: int, KV: int, D: int, S: int, past: int
) -> list[Call]:
    """Make the call; the second sequence has half the past of the first, and so on."""

    def normal(*shape: int) -> Array:
        return rng.standard_normal(shape).astype(np.float32).astype(np.float64)

    pasts = past // np.arange(1, B + 1)
    keys, values = normal(2, B, KV, S, D)
    q, k, v = normal(B * T, H * D), normal(B * T, KV * D), normal(B * T, KV * D)
    initial = {"kc": _blocked(keys), "vc": values.copy()}
    o = np.empty_like(q)
    for b, before in enumerate(pasts if T else ()):
        new, end = slice(b * T, (b + 1) * T), before + T
        for cache, rows in ((keys, k), (values, v)):
            cache[b, :, before:end] = rows[new].reshape(T, KV, D).swapaxes(0, 1)
        o[new] = _attend(q[new], keys[b, :, :end], values[b, :, :end])
    return [
        call(
            "forward",
            {"o": o, "kc": _blocked(keys), "vc": values},
            {"q": q, "k": k, "v": v, "past": pasts},
            initial=initial,
            flops=4 * B * T * H * D * (past + T),
        )
    ]


CASE = OpCase(
    op="cached_attention",
    shapes=(
        {"B": 1, "T": 1, "H": 1, "KV": 1, "D": 1, "S": 64, "past": 0},
        {"B": 0, "T": 1, "H": 2, "KV": 1, "D": 8, "S": 64, "past": 0},
        {"B": 2, "T": 0, "H": 2, "KV": 1, "D": 8, "S": 64, "past": 9},
        {"B": 2, "T": 1, "H": 4, "KV": 2, "D": 33, "S": 192, "past": 128},  # one past a block
        {"B": 2, "T": 1, "H": 6, "KV": 2, "D": 16, "S": 640, "past": 512},  # one past two spans
        {"B": 2, "T": 1, "H": 2, "KV": 1, "D": 8, "S": 512, "past": 511},  # one ends with a span
        {"B": 1, "T": 1, "H": 70, "KV": 1, "D": 8, "S": 320, "past": 255},  # a group past a block
        {"B": 1, "T": 1, "H": 3, "KV": 3, "D": 64, "S": 512, "past": 511},  # the last row
        {"B": 2, "T": 65, "H": 4, "KV": 2, "D": 20, "S": 192, "past": 127},
        {"B": 1, "T": 64, "H": 3, "KV": 1, "D": 64, "S": 128, "past": 60},  # across a block's edge
        {"B": 2, "T": 5, "H": 2, "KV": 2, "D": 257, "S": 64, "past": 40},
    ),
    bench={
        "decode_135m_past_1k": {"B": 1, "T": 1, "H": 9, "KV": 3, "D": 64, "S": 1088, "past": 1023},
        "decode_135m_past_8k": {"B": 1, "T": 1, "H": 9, "KV": 3, "D": 64, "S": 8256, "past": 8191},
        "decode_gpt2_past_1k": {
            **{"B": 1, "T": 1, "H": 12, "KV": 12, "D": 64},
            **{"S": 1088, "past": 1023},
        },
        "prefill_135m_past_1k": {
            **{"B": 1, "T": 64, "H": 9, "KV": 3, "D": 64},
            **{"S": 1088, "past": 1024},
        },
    },
    calls=_calls,
    tolerance=2e-6,
    reason="float32 sums of up to 577 products, and exp to 2 units in the last place",
)
