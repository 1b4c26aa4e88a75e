"""transpose against NumPy's swapaxes."""

import numpy as np

from toynn.testing.cases._case import Array, Call, OpCase, derived, normal, reference, shapes_of


def _inputs(rng: np.random.Generator, A: int, N: int, M: int, B: int) -> dict[str, Array]:
    return {"x": normal(rng, A, N, M, B)}


def _function(arrays: dict[str, Array], **_: int) -> Array:
    return reference("transpose.forward", arrays, {})["y"]


def _gradients(arrays: dict[str, Array], dy: Array, **_: int) -> dict[str, Array]:
    return {"dx": reference("transpose.forward", {"x": dy}, {})["y"]}


def _calls(rng: np.random.Generator, **sizes: int) -> list[Call]:
    return [derived("transpose.forward", _inputs(rng, **sizes))]


CASE = OpCase(
    op="transpose",
    inputs=_inputs,
    function=_function,
    gradients=_gradients,
    calls=_calls,
    shapes=shapes_of("A N M B", "1 1 1 1, 3 7 37 1, 2 19 5 3, 1 33 17 1, 0 2 3 2, 2 3 2 0"),
    bench={
        "square_1m": {"A": 1, "N": 1024, "M": 1024, "B": 1},
        "heads_gpt2_124m": {"A": 1, "N": 256, "M": 12, "B": 64},
    },
    tolerance=1e-9,
    reason="numbers are copied",
)
