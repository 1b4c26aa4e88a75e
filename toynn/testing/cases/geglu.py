"""geglu against gate (1 + tanh(..)) / 2 * up."""

import numpy as np

from toynn.backends.reference import pointwise
from toynn.testing.cases._case import Array, Call, OpCase, call


def _inputs(rng: np.random.Generator, n: int) -> dict[str, Array]:
    gate, up = rng.standard_normal((2, n)).astype(np.float32)
    gate[::4] *= 16
    return {"gate": gate, "up": up}


def _function(inputs: dict[str, Array], n: int) -> Array:
    return pointwise.geglu(**inputs)["y"]


def _gradients(inputs: dict[str, Array], dy: Array, n: int) -> dict[str, Array]:
    return pointwise.geglu_backward(dy, **inputs)


def _calls(rng: np.random.Generator, n: int) -> list[Call]:
    inputs = _inputs(rng, n)
    exact = {name: value.astype(np.float64) for name, value in inputs.items()}
    dy = rng.standard_normal(n).astype(np.float32)
    return [
        call("forward", {"y": _function(exact, n)}, inputs),
        call(
            "backward",
            _gradients(exact, dy.astype(np.float64), n),
            {"dy": dy, **inputs},
        ),
    ]


CASE = OpCase(
    op="geglu",
    shapes=({"n": 1}, {"n": 37}, {"n": 0}, {"n": 4096}, {"n": 4097}),
    bench={"gemma3_270m": {"n": 256 * 2048}},
    calls=_calls,
    tolerance=4e-7,
    reason="a few roundings; exp within 2 units in the last place, of a polynomial",
    inputs=_inputs,
    function=_function,
    gradients=_gradients,
)
