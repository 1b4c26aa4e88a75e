"""sums against NumPy's sum over the middle axis, and its repeat."""

import numpy as np

from toynn.testing.cases._case import Array, Call, OpCase, derived, normal, reference

ALPHA = {"alpha": -0.75}


def _inputs(rng: np.random.Generator, A: int, N: int, B: int) -> dict[str, Array]:
    return {"x": normal(rng, A, N, B)}


def _function(given: dict[str, Array], **_: int) -> Array:
    return reference("sums.forward", given, ALPHA)["y"]


def _gradients(given: dict[str, Array], dy: Array, N: int, **_: int) -> dict[str, Array]:
    return {"dx": reference("sums.expand", {"x": dy}, {"N": N, **ALPHA})["y"]}


def _calls(rng: np.random.Generator, A: int, N: int, B: int) -> list[Call]:
    given = _inputs(rng, A, N, B)
    return [
        derived("sums.forward", given, ALPHA),
        derived("sums.expand", {"x": normal(rng, A, B)}, {"N": N, **ALPHA}),
    ]


CASE = OpCase(
    op="sums",
    inputs=_inputs,
    function=_function,
    gradients=_gradients,
    calls=_calls,
    shapes=(
        {"A": 1, "N": 1, "B": 1},
        {"A": 7, "N": 33, "B": 3},
        {"A": 1, "N": 4099, "B": 1},
        {"A": 3, "N": 5, "B": 130},
        {"A": 70, "N": 17, "B": 1},
        {"A": 2, "N": 0, "B": 3},
        {"A": 0, "N": 4, "B": 2},
        {"A": 2, "N": 3, "B": 0},
    ),
    bench={
        "mean_1m": {"A": 1, "N": 1 << 20, "B": 1},
        "bias_gpt2_124m": {"A": 1, "N": 256, "B": 768},
    },
    tolerance=2e-7,
    reason="sums of doubles, rounded once",
)
