"""token_sums against NumPy's cumulative sums in float64."""

from collections.abc import Mapping

import numpy as np

from toynn.testing.cases._case import Array, Sizes, differentiable, shapes_of


def _inputs(rng: np.random.Generator, N: int, S: int) -> dict[str, Array]:
    """Return losses, and bounds where parts begin; every row is in a part, some parts are empty."""
    bounds = np.array([N * k * k // (4 * S * S) for k in range(2 * S + 1)], np.int32)
    return {"losses": rng.standard_normal(N).astype(np.float32) ** 2, "bounds": bounds}


def _loses_nan(entry: str, sizes: Sizes) -> Mapping[str, str]:
    return {"dsums": "of a part without rows"}


CASE = differentiable(
    "token_sums",
    _inputs,
    loses_nan=_loses_nan,
    shapes=shapes_of("N S", "100 3, 5 1, 1 4, 0 1"),
    bench={"pairs_8": {"N": 2048, "S": 16}},
    tolerance=2e-7,
    reason="sums in double, rounded once to float32",
)
