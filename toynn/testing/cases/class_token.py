"""class_token against NumPy's concatenate and a sum with broadcasting."""

import numpy as np

from toynn.testing.cases._case import Array, differentiable, normal


def _inputs(rng: np.random.Generator, B: int, T: int, C: int) -> dict[str, Array]:
    return {"x": normal(rng, B * (T - 1), C), "cls": normal(rng, C), "pos": normal(rng, T, C)}


CASE = differentiable(
    "class_token",
    _inputs,
    shapes=(
        {"B": 1, "T": 1, "C": 1},
        {"B": 3, "T": 5, "C": 130},
        {"B": 1, "T": 17, "C": 65},
        {"B": 0, "T": 5, "C": 8},
        {"B": 4, "T": 1, "C": 3},
        {"B": 2, "T": 3, "C": 0},
    ),
    bench={"vit_tiny": {"B": 16, "T": 197, "C": 192}},
    tolerance=2e-6,
    reason="forward is one sum; backward adds up to 4 rows in float32, in their order",
)
