"""gatednorm against the RMSNorm of each group of x silu(z), in float64."""

import numpy as np

from toynn.testing.cases._case import Array, differentiable, normal


def _inputs(rng: np.random.Generator, N: int, G: int, C: int) -> dict[str, Array]:
    return {
        "x": normal(rng, N, G * C),
        "z": normal(rng, N, G * C, scale=2),
        "w": normal(rng, G, C),
    }


CASE = differentiable(
    "gatednorm",
    _inputs,
    shapes=(
        {"N": 1, "G": 1, "C": 1},
        {"N": 37, "G": 2, "C": 65},
        {"N": 5, "G": 3, "C": 130},
        {"N": 0, "G": 2, "C": 8},
    ),
    bench={"granite4_h_1b": {"N": 256, "G": 1, "C": 3072}},
    tolerance=2e-6,
    reason="float32 sums of up to 130 terms in 16 partial sums; the sigmoid is within 3 units",
)
