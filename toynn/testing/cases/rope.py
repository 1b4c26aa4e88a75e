"""rope against the product of complex numbers: (x_j + i x_k) e^(i angle)."""

import numpy as np

from toynn.testing.cases._case import Array, Sizes, differentiable, normal, shapes_of

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
    shapes=shapes_of(
        "N H D interleaved",
        "1 1 2 0, 9 3 10 0, 9 3 10 1, 5 2 128 0, 5 2 130 0, 5 2 130 1, 5 2 12 0 R=8",
        "5 2 12 1 R=8, 3 3 200 0 R=132 P=2, 2 4 6 1 P=3, 9 2 6 1 span=1000",
        "4 2 12 0 R=8 span=3, 3 2 8 0 R=0, 0 2 8 0, 3 2 0 0",
    ),
    bench={"llama_135m": {"N": 256, "H": 9, "D": 64, "interleaved": 0}},
    tolerance=2e-7,
    reason="cosine and sine within 2e-7 of angles kept in double, one multiply-add",
)
