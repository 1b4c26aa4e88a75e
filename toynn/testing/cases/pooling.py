"""pooling against means of rows in float64."""

from collections.abc import Mapping

import numpy as np

from toynn.testing.cases._case import Array, Sizes, differentiable, normal


def _inputs(rng: np.random.Generator, N: int, S: int, C: int) -> dict[str, Array]:
    """Return rows, and bounds of texts; some may be empty, the last row may be in none."""
    bounds = np.array([N * s * s // (S * S) for s in range(S)] + [max(N - 1, 0)], np.int32)
    return {"x": normal(rng, N, C), "bounds": np.maximum.accumulate(bounds)}


def _loses_nan(entry: str, sizes: Sizes) -> Mapping[str, str]:
    return {"x": "of a row in no text", "dy": "of a text without rows"}


CASE = differentiable(
    "pooling",
    _inputs,
    loses_nan=_loses_nan,
    shapes=(
        {"N": 100, "S": 3, "C": 17},
        {"N": 7, "S": 7, "C": 1},
        {"N": 1, "S": 4, "C": 5},
        {"N": 0, "S": 1, "C": 3},
        {"N": 700, "S": 1, "C": 33},
    ),
    bench={"minilm_32": {"N": 1024, "S": 32, "C": 384}},
    tolerance=2e-6,
    reason="float32 sums of up to 700 rows, divided once",
)
