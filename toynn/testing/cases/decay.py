"""decay against w log(1 + e^(x + b)) in float64."""

import numpy as np

from toynn.testing.cases._case import Array, differentiable, normal, shapes_of


def _inputs(rng: np.random.Generator, N: int, V: int) -> dict[str, Array]:
    w = -rng.uniform(0.01, 16, V).astype(np.float32)
    return {"x": normal(rng, N, V, scale=4), "w": w, "b": normal(rng, V)}


CASE = differentiable(
    "decay",
    _inputs,
    shapes=shapes_of("N V", "1 1, 7 5, 70 33, 0 4"),
    bench={"qwen35_0.8b": {"N": 256, "V": 16}},
    tolerance=1e-6,
    reason="a sum of up to 70 terms in float32; exp and log1p are the C library's",
)
