"""sums against NumPy's sum over the middle axis, and its repeat."""

import numpy as np

from toynn.testing.cases._case import Array, Call, OpCase, derived, normal, reference, shapes_of

ALPHA = {"alpha": -0.75}


def _inputs(rng: np.random.Generator, A: int, N: int, B: int) -> dict[str, Array]:
    return {"x": normal(rng, A, N, B)}


def _function(arrays: dict[str, Array], **_: int) -> Array:
    return reference("sums.forward", arrays, ALPHA)["y"]


def _gradients(arrays: dict[str, Array], dy: Array, N: int, **_: int) -> dict[str, Array]:
    return {"dx": reference("sums.expand", {"x": dy}, {"N": N, **ALPHA})["y"]}


def _calls(rng: np.random.Generator, A: int, N: int, B: int) -> list[Call]:
    arrays = _inputs(rng, A, N, B)
    return [
        derived("sums.forward", arrays, ALPHA),
        derived("sums.expand", {"x": normal(rng, A, B)}, {"N": N, **ALPHA}),
    ]


CASE = OpCase(
    op="sums",
    inputs=_inputs,
    function=_function,
    gradients=_gradients,
    calls=_calls,
    shapes=shapes_of("A N B", "1 1 1, 7 33 3, 1 4099 1, 3 5 130, 70 17 1, 2 0 3, 0 4 2, 2 3 0"),
    bench={
        "mean_1m": {"A": 1, "N": 1 << 20, "B": 1},
        "bias_gpt2_124m": {"A": 1, "N": 256, "B": 768},
    },
    tolerance=2e-7,
    reason="sums of doubles, rounded once",
)
