"""layernorm against y = (x - mean(x)) / sqrt(var(x) + eps) * w + b."""

import numpy as np

from toynn.testing.cases._case import Array, differentiable, normal


def _inputs(rng: np.random.Generator, N: int, C: int) -> dict[str, Array]:
    """Return rows whose mean is several times their spread, where careless sums lose digits."""
    x = normal(rng, N, C) + normal(rng, N, 1, scale=4)
    return {"x": x, "w": normal(rng, C), "b": normal(rng, C)}


CASE = differentiable(
    "layernorm",
    _inputs,
    shapes=(
        {"N": 1, "C": 1},
        {"N": 37, "C": 130},
        {"N": 3, "C": 65},
        {"N": 0, "C": 8},
        {"N": 2, "C": 0},
        {"N": 129, "C": 768},
    ),
    bench={"gpt2_124m": {"N": 256, "C": 768}},
    tolerance=2e-6,
    reason="float32 sums of up to 768 terms in 16 partial sums; the mean is not subtracted exactly",
)
