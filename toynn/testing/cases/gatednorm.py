"""gatednorm against the RMSNorm of each group of x silu(z), in float64."""

import numpy as np

from toynn.testing.cases._case import Array, differentiable, normal, shapes_of


def _inputs(rng: np.random.Generator, N: int, G: int, C: int) -> dict[str, Array]:
    return {
        "x": normal(rng, N, G * C),
        "z": normal(rng, N, G * C, scale=2),
        "w": normal(rng, G, C),
    }


CASE = differentiable(
    "gatednorm",
    _inputs,
    shapes=shapes_of("N G C", "1 1 1, 37 2 65, 5 3 130, 0 2 8"),
    bench={"granite4_h_1b": {"N": 256, "G": 1, "C": 3072}},
    tolerance=2e-6,
    reason="float32 sums of up to 130 terms in 16 partial sums; the sigmoid is within 3 units",
)
