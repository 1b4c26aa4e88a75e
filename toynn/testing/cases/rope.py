"""rope against the product of complex numbers: (x_j + i x_k) e^(i angle)."""

import numpy as np

from toynn.testing.cases._case import Array, Sizes, differentiable, normal

BASE = 10000.0
CONTEXT = 8192
MAGNITUDE = 1.25
GROWTH = 0.1


def _inputs(
    rng: np.random.Generator, N: int, H: int, D: int, R: int | None = None, **_: int
) -> dict[str, Array]:
    """Return x, random positions, and frequencies; the last row is at the end of a long context."""
    R = D if R is None else R
    positions = rng.integers(0, CONTEXT, N).astype(np.int32)
    positions[-1:] = CONTEXT - 1
    frequency = (BASE ** (-np.arange(0, R, 2) / max(R, 1))).astype(np.float32)
    return {"x": normal(rng, N, H, D), "positions": positions, "inverse_frequency": frequency}


def _options(sizes: Sizes) -> dict[str, float]:
    """Return a magnitude if only some channels rotate, and growth if there is a span."""
    return {
        "magnitude": MAGNITUDE if "R" in sizes else 1.0,
        "growth": GROWTH if "span" in sizes else 0.0,
    }


CASE = differentiable(
    "rope",
    _inputs,
    options=_options,
    shapes=(
        {"N": 1, "H": 1, "D": 2, "interleaved": 0},
        {"N": 9, "H": 3, "D": 10, "interleaved": 0},
        {"N": 9, "H": 3, "D": 10, "interleaved": 1},
        {"N": 5, "H": 2, "D": 128, "interleaved": 0},
        {"N": 5, "H": 2, "D": 130, "interleaved": 0},
        {"N": 5, "H": 2, "D": 130, "interleaved": 1},
        {"N": 5, "H": 2, "D": 12, "interleaved": 0, "R": 8},
        {"N": 5, "H": 2, "D": 12, "interleaved": 1, "R": 8},
        {"N": 3, "H": 3, "D": 200, "interleaved": 0, "R": 132, "P": 2},
        {"N": 2, "H": 4, "D": 6, "interleaved": 1, "P": 3},
        {"N": 9, "H": 2, "D": 6, "interleaved": 1, "span": 1000},
        {"N": 4, "H": 2, "D": 12, "interleaved": 0, "R": 8, "span": 3},
        {"N": 3, "H": 2, "D": 8, "interleaved": 0, "R": 0},
        {"N": 0, "H": 2, "D": 8, "interleaved": 0},
        {"N": 3, "H": 2, "D": 0, "interleaved": 0},
    ),
    bench={"llama_135m": {"N": 256, "H": 9, "D": 64, "interleaved": 0}},
    tolerance=2e-7,
    reason="cosine and sine within 2e-7 of angles kept in double, one multiply-add",
)
