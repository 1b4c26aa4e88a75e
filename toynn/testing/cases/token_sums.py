"""token_sums against NumPy's cumulative sums in float64."""

from typing import Any

import numpy as np

from toynn.backends.reference import preferences
from toynn.testing.cases._case import Array, Call, OpCase, call


def _bounds(N: int, S: int) -> Array:
    """Where parts begin: all rows lie in one, some parts have none."""
    return np.array([N * k * k // (4 * S * S) for k in range(2 * S + 1)], np.int32)


def _inputs(rng: np.random.Generator, N: int, S: int) -> dict[str, Array]:
    return {"losses": rng.standard_normal(N).astype(np.float32) ** 2, "bounds": _bounds(N, S)}


def _function(inputs: dict[str, Array], **_: Any) -> Array:
    return preferences.sums(inputs["losses"], inputs["bounds"])["sums"]


def _gradients(inputs: dict[str, Array], dy: Array, N: int, S: int) -> dict[str, Array]:
    return preferences.sums_backward(dy, inputs["bounds"], N)


def _calls(rng: np.random.Generator, N: int, S: int) -> list[Call]:
    given = _inputs(rng, N, S)
    dsums = rng.standard_normal((S, 2)).astype(np.float32)
    bounds, exact = given["bounds"], given["losses"].astype(np.float64)
    backward = preferences.sums_backward(dsums.astype(np.float64), bounds, N)
    why = {"dsums": "of a part without rows"}
    return [
        call("forward", preferences.sums(exact, bounds), given, free=("losses",)),
        call(
            "backward",
            backward,
            {"dsums": dsums, "bounds": bounds},
            free=("dlosses",),
            loses_nan=why,
        ),
    ]


CASE = OpCase(
    op="token_sums",
    shapes=({"N": 100, "S": 3}, {"N": 5, "S": 1}, {"N": 1, "S": 4}, {"N": 0, "S": 1}),
    bench={"pairs_8": {"N": 2048, "S": 16}},
    calls=_calls,
    tolerance=2e-7,
    reason="sums in double, of which one rounding is seen",
    inputs=_inputs,
    function=_function,
    gradients=_gradients,
)
