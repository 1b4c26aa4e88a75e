"""softmax against exp(x) / sum(exp(x)) of each row."""

import numpy as np

from toynn.testing.cases._case import Array, differentiable, normal, shapes_of


def _inputs(rng: np.random.Generator, N: int, C: int) -> dict[str, Array]:
    """Return rows far from 0, where exp overflows unless the maximum is subtracted; and masks."""
    x = normal(rng, N, C, scale=3) + normal(rng, N, 1, scale=100)
    x[::3, 1::5] = -np.inf
    return {"x": x}


CASE = differentiable(
    "softmax",
    _inputs,
    shapes=shapes_of("N C", "1 1, 37 130, 3 17, 0 8, 2 0, 5 1025"),
    bench={"scores_1024": {"N": 1024, "C": 1024}},
    tolerance=6e-7,
    reason="exp within 2 units in the last place; y dy, up to four times dx, is rounded before "
    "dy - sum(y dy) cancels",
)
