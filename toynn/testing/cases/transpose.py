"""transpose against NumPy's swapaxes."""

import numpy as np

from toynn.testing.cases._case import Array, Call, OpCase, derived, normal, reference


def _inputs(rng: np.random.Generator, A: int, N: int, M: int, B: int) -> dict[str, Array]:
    return {"x": normal(rng, A, N, M, B)}


def _function(given: dict[str, Array], **_: int) -> Array:
    return reference("transpose.forward", given, {})["y"]


def _gradients(given: dict[str, Array], dy: Array, **_: int) -> dict[str, Array]:
    return {"dx": reference("transpose.forward", {"x": dy}, {})["y"]}


def _calls(rng: np.random.Generator, **sizes: int) -> list[Call]:
    return [derived("transpose.forward", _inputs(rng, **sizes))]


CASE = OpCase(
    op="transpose",
    inputs=_inputs,
    function=_function,
    gradients=_gradients,
    calls=_calls,
    shapes=(
        {"A": 1, "N": 1, "M": 1, "B": 1},
        {"A": 3, "N": 7, "M": 37, "B": 1},
        {"A": 2, "N": 19, "M": 5, "B": 3},
        {"A": 1, "N": 33, "M": 17, "B": 1},
        {"A": 0, "N": 2, "M": 3, "B": 2},
        {"A": 2, "N": 3, "M": 2, "B": 0},
    ),
    bench={
        "square_1m": {"A": 1, "N": 1024, "M": 1024, "B": 1},
        "heads_gpt2_124m": {"A": 1, "N": 256, "M": 12, "B": 64},
    },
    tolerance=1e-9,
    reason="numbers are copied",
)
