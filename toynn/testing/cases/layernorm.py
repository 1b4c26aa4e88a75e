"""layernorm against y = (x - mean(x)) / sqrt(var(x) + eps) * w + b."""

import numpy as np

from toynn.testing.cases._case import Array, differentiable, normal, shapes_of


def _inputs(rng: np.random.Generator, N: int, C: int) -> dict[str, Array]:
    """Return rows whose mean is several times their spread, where careless sums lose digits."""
    x = normal(rng, N, C) + normal(rng, N, 1, scale=4)
    return {"x": x, "w": normal(rng, C), "b": normal(rng, C)}


CASE = differentiable(
    "layernorm",
    _inputs,
    shapes=shapes_of("N C", "1 1, 37 130, 3 65, 0 8, 2 0, 129 768"),
    bench={"gpt2_124m": {"N": 256, "C": 768}},
    tolerance=2e-6,
    reason="float32 sums of up to 768 terms in 16 partial sums; the mean is not subtracted exactly",
)
