"""attention against softmax(scale q k^T) v with the whole T x T matrix in float64."""

import math
from typing import Any

import numpy as np

from toynn.testing.cases._case import Array, Call, OpCase, call


def _inputs(
    rng: np.random.Generator, B: int, T: int, H: int, KV: int, D: int, **_: Any
) -> dict[str, Array]:
    return {
        "q": rng.standard_normal((B * T, H * D)).astype(np.float32),
        "k": rng.standard_normal((B * T, KV * D)).astype(np.float32),
        "v": rng.standard_normal((B * T, KV * D)).astype(np.float32),
    }


def _heads(x: Array, B: int, T: int, D: int) -> Array:
    """Split rows and columns: (B*T, heads*D) to (B, heads, T, D)."""
    return x.reshape(B, T, x.shape[1] // D, D).transpose(0, 2, 1, 3)


def _rows(x: Array) -> Array:
    """Undo ``_heads``."""
    B, H, T, D = x.shape
    return x.transpose(0, 2, 1, 3).reshape(B * T, H * D)


def _split(inputs: dict[str, Array], sizes: dict[str, int]) -> tuple[Array, Array, Array]:
    """Return q, k, v as (B, H, T, D); each head of k and v repeated for the queries it serves."""
    B, T, D, group = sizes["B"], sizes["T"], sizes["D"], sizes["H"] // sizes["KV"]
    q, k, v = (_heads(inputs[name], B, T, D) for name in "qkv")
    return q, k.repeat(group, axis=1), v.repeat(group, axis=1)


def _softmax(q: Array, k: Array, sizes: dict[str, int]) -> tuple[Array, Array]:
    """Return p (B, H, T, T) and lse (B, H, T)."""
    T = sizes["T"]
    scores = q @ k.transpose(0, 1, 3, 2) / math.sqrt(sizes["D"])
    if sizes["causal"]:
        scores = np.where(np.tri(T, dtype=bool), scores, -np.inf)
    most = scores.max(axis=-1, keepdims=True, initial=-1e300)
    lse = np.log(np.exp(scores - most).sum(axis=-1)) + most[..., 0]
    return np.exp(scores - lse[..., None]), lse


def _function(inputs: dict[str, Array], **sizes: int) -> Array:
    q, k, v = _split(inputs, sizes)
    return _rows(_softmax(q, k, sizes)[0] @ v)


def _gradients(inputs: dict[str, Array], dy: Array, **sizes: int) -> dict[str, Array]:
    B, T, H, KV, D = (sizes[name] for name in ("B", "T", "H", "KV", "D"))
    q, k, v = _split(inputs, sizes)
    p = _softmax(q, k, sizes)[0]
    do = _heads(dy, B, T, D)
    dp = do @ v.transpose(0, 1, 3, 2)
    ds = p * (dp - (p * dp).sum(axis=-1, keepdims=True)) / math.sqrt(D)

    def served(x: Array) -> Array:
        """Add up the query heads that share a head of k and v."""
        return _rows(x.reshape(B, KV, H // KV, T, D).sum(axis=2))

    return {
        "dq": _rows(ds @ k),
        "dk": served(ds.transpose(0, 1, 3, 2) @ q),
        "dv": served(p.transpose(0, 1, 3, 2) @ do),
    }


def _calls(rng: np.random.Generator, **sizes: int) -> list[Call]:
    inputs = _inputs(rng, **sizes)
    exact = {name: value.astype(np.float64) for name, value in inputs.items()}
    q, k, v = _split(exact, sizes)
    p, lse = _softmax(q, k, sizes)
    o = _rows(p @ v)
    do = rng.standard_normal(o.shape).astype(np.float32)
    delta = (_heads(do * o, sizes["B"], sizes["T"], sizes["D"])).sum(axis=-1)
    causal = bool(sizes["causal"])
    flops = 4 * sizes["B"] * sizes["H"] * sizes["T"] ** 2 * sizes["D"] // (2 if causal else 1)
    return [
        call("forward", {"o": o, "lse": lse}, inputs, flops=flops, causal=causal),
        call(
            "backward",
            _gradients(exact, do.astype(np.float64), **sizes) | {"delta": delta},
            {"do": do, "o": o, "lse": lse, **inputs},
            flops=flops * 5 // 2,
            causal=causal,
        ),
    ]


CASE = OpCase(
    op="attention",
    shapes=(
        {"B": 1, "T": 1, "H": 1, "KV": 1, "D": 1, "causal": 1},
        {"B": 0, "T": 4, "H": 2, "KV": 1, "D": 8, "causal": 1},
        {"B": 2, "T": 0, "H": 2, "KV": 1, "D": 8, "causal": 0},
        {"B": 2, "T": 65, "H": 4, "KV": 2, "D": 33, "causal": 1},  # one past a block
        {"B": 2, "T": 65, "H": 4, "KV": 2, "D": 33, "causal": 0},
        {"B": 1, "T": 130, "H": 3, "KV": 1, "D": 16, "causal": 1},
        {"B": 1, "T": 144, "H": 2, "KV": 1, "D": 8, "causal": 0},  # the longest last block
        {"B": 1, "T": 145, "H": 2, "KV": 1, "D": 8, "causal": 0},  # one past it
        {"B": 1, "T": 64, "H": 2, "KV": 2, "D": 257, "causal": 1},  # one past a block of terms
        {"B": 2, "T": 37, "H": 2, "KV": 2, "D": 64, "causal": 0},
    ),
    bench={
        "gpt2_124m_t256": {"B": 4, "T": 256, "H": 12, "KV": 12, "D": 64, "causal": 1},
        "gpt2_124m_t64": {"B": 4, "T": 64, "H": 12, "KV": 12, "D": 64, "causal": 1},
        "llama_135m": {"B": 1, "T": 256, "H": 9, "KV": 3, "D": 64, "causal": 1},
        "vit_tiny": {"B": 1, "T": 197, "H": 3, "KV": 3, "D": 64, "causal": 0},
        "tiny": {"B": 1, "T": 32, "H": 4, "KV": 4, "D": 16, "causal": 1},
    },
    calls=_calls,
    tolerance=2e-6,
    reason="float32 sums of up to 257 products, and exp to 2 units in the last place; rough: "
    "factors off by 2^-9 of their size, weights and their gradients among them",
    rough=1e-2,
    inputs=_inputs,
    function=_function,
    gradients=_gradients,
)
