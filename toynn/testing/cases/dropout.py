"""dropout against the same hash in NumPy's 64-bit integers."""

from typing import Any

import numpy as np

from toynn.backends.reference.pointwise import dropout_factors
from toynn.testing.cases._case import Array, Call, OpCase, derived, normal, reference, shapes_of

OPTIONS: dict[str, Any] = {"seed": 9, "site": 4, "p": 0.3}
DROPPING, IDENTITY = (np.array([step, active], np.int32) for step, active in ((7, 1), (7, 0)))


def _inputs(rng: np.random.Generator, n: int) -> dict[str, Array]:
    return {"x": normal(rng, n), "control": DROPPING}


def _function(arrays: dict[str, Array], n: int) -> Array:
    return reference("dropout.forward", arrays, OPTIONS)["y"]


def _gradients(arrays: dict[str, Array], dy: Array, n: int) -> dict[str, Array]:
    return {"dx": dy * dropout_factors(n, arrays["control"], **OPTIONS)}


def _calls(rng: np.random.Generator, n: int) -> list[Call]:
    arrays = _inputs(rng, n)
    return [
        derived("dropout.forward", {**arrays, "control": control}, OPTIONS)
        for control in (DROPPING, IDENTITY)
    ]


CASE = OpCase(
    op="dropout",
    inputs=_inputs,
    function=_function,
    gradients=_gradients,
    calls=_calls,
    shapes=shapes_of("n", "1, 37, 0, 4096, 4097, 8193"),
    bench={"tinyllama": {"n": 256 * 2048}},
    tolerance=2e-7,
    reason="a product, and the rounding of its factor",
)
