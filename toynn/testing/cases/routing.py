"""routing against a stable argsort of the scores."""

from collections.abc import Mapping

import numpy as np

from toynn.testing.cases._case import Array, Sizes, differentiable


def _inputs(rng: np.random.Generator, N: int, E: int, **_: int) -> dict[str, Array]:
    p = np.exp(2 * rng.standard_normal((N, E)))
    return {"p": (p / p.sum(axis=1, keepdims=True)).astype(np.float32)}


def _options(sizes: Sizes) -> dict[str, float]:
    return {"scale": float(np.float32(sizes.get("tenths", 10) / 10))}


def _loses_nan(entry: str, sizes: Sizes) -> Mapping[str, str]:
    if entry == "forward" or sizes.get("normalized"):
        return {}
    return {"p": "without the sum nothing depends on it", "weights": "nor on these"}


CASE = differentiable(
    "routing",
    _inputs,
    options=_options,
    loses_nan=_loses_nan,
    shapes=(
        {"N": 37, "E": 11, "K": 3, "normalized": 1, "tenths": 25},
        {"N": 65, "E": 32, "K": 4},
        {"N": 3, "E": 8, "K": 8, "normalized": 1},  # all
        {"N": 9, "E": 1, "K": 1},
        {"N": 0, "E": 4, "K": 2},
        {"N": 20, "E": 128, "K": 1, "tenths": 5},
    ),
    bench={"qwen3_30b_a3b": {"N": 256, "E": 128, "K": 8, "normalized": 1}},
    tolerance=1e-6,
    reason="a sum of up to eight scores, a quotient, a product; a gradient is a difference",
)
