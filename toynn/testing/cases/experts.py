"""experts against x w[e]^T + b[e] in float64, expert by expert, and the products of its gradient.

Some experts have no rows, one has a few and one has most; the last rows belong to no expert. With a
``type`` (GGUF's number), w holds random quantized blocks.
"""

import math
from typing import Any

import numpy as np

from toynn.testing.cases._case import Array, Call, derived, differentiable, normal, shapes_of
from toynn.testing.cases.quants import SCALES, matrix

_UNUSED = dict.fromkeys("wb", "an expert without rows is not read")
_WEIGHTS = (0, 1, 3, 12, 0, 5, 2)  # relative shares of the rows, by expert


def _offsets(E: int, M: int) -> Array:
    """Return where the rows of each expert begin; the last row belongs to no expert."""
    shares = np.array([_WEIGHTS[e % len(_WEIGHTS)] for e in range(E)], np.float64)
    if not shares.any():
        shares[:] = 1
    ends = np.floor(np.cumsum(shares) / shares.sum() * max(M - 1, 0) + 1e-9)
    return np.concatenate([[0], ends]).astype(np.int32)


def _inputs(rng: np.random.Generator, E: int, M: int, N: int, K: int, **_: Any) -> dict[str, Array]:
    w = normal(rng, E, N, K, scale=1 / math.sqrt(max(K, 1)))
    return {"x": normal(rng, M, K), "w": w, "b": normal(rng, E, N), "offsets": _offsets(E, M)}


def _calls(rng: np.random.Generator, E: int, M: int, N: int, K: int, type: int = 0) -> list[Call]:
    """Assign every row to an expert: a kernel leaves other rows undefined."""
    arrays, more = _inputs(rng, E, M, N, K), dict[str, Any]()
    there = int(arrays["offsets"][-1])
    arrays |= {"x": arrays["x"][:there], "dy": normal(rng, there, N)}
    if type:  # quantized weights are frozen
        more["type"], raw, exact = matrix(rng, type, E * N, K)
        arrays["w"] = raw.reshape(E, N, -1)
        more["exact"] = {"w": exact.reshape(E, N, K)}
    reading = ("forward", "backward_input")
    others = () if type else ("backward_weight", "backward_bias")
    return [
        *(derived(f"experts.{entry}", arrays, loses_nan=_UNUSED, **more) for entry in reading),
        *(derived(f"experts.{entry}", arrays) for entry in others),
    ]


CASE = differentiable(
    "experts",
    _inputs,
    backward=("backward_input", "backward_weight", "backward_bias"),
    shapes=(
        *shapes_of(
            "E M N K",
            "5 38 19 33, 1 2 1 1",
            "7 140 130 257",  # packed, small and GEMV, all at once
            "3 400 40 300",  # more rows than columns
            "4 40 700 96",
            "9 1 3 5",  # no row belongs to an expert
            "3 0 3 5, 2 7 4 0, 3 200 96 288 type=8",
        ),
        *({"E": 3, "M": 24, "N": 17, "K": 256, "type": type} for type in SCALES),
    ),
    bench={
        "gate_32_of_135m": {"E": 32, "M": 1024, "N": 384, "K": 576},
        "gate_qwen3_30b_a3b_q4_k": {"E": 128, "M": 2048, "N": 768, "K": 2048, "type": 12},
    },
    calls=_calls,
    tolerance=2e-6,
    reason="float32 sums of up to 400 products, relative to the largest element; rough as matmul",
    rough=8e-3,
)
