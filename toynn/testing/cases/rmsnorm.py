"""rmsnorm against y = x / sqrt(mean(x^2) + eps) * w."""

import numpy as np

from toynn.testing.cases._case import Array, differentiable, normal


def _inputs(rng: np.random.Generator, N: int, C: int) -> dict[str, Array]:
    return {"x": normal(rng, N, C), "w": normal(rng, C)}


CASE = differentiable(
    "rmsnorm",
    _inputs,
    shapes=(
        {"N": 1, "C": 1},
        {"N": 37, "C": 130},
        {"N": 3, "C": 65},
        {"N": 0, "C": 8},
        {"N": 129, "C": 768},
    ),
    bench={"llama_135m": {"N": 256, "C": 576}, "gpt2_124m": {"N": 256, "C": 768}},
    tolerance=2e-6,
    reason="float32 sums of up to 768 terms in 16 partial sums",
)
