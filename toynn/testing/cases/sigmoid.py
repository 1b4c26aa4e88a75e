"""sigmoid against 1 / (1 + exp(-x))."""

import numpy as np

from toynn.backends.reference import pointwise
from toynn.testing.cases._case import Array, Call, OpCase, call


def _inputs(rng: np.random.Generator, n: int) -> dict[str, Array]:
    """Values around 0 and, every fourth one, out to where sigmoid is flat."""
    x = rng.standard_normal(n).astype(np.float32)
    x[::4] *= 16
    return {"x": x}


def _function(inputs: dict[str, Array], n: int) -> Array:
    return pointwise.sigmoid(**inputs)["y"]


def _gradients(inputs: dict[str, Array], dy: Array, n: int) -> dict[str, Array]:
    return pointwise.sigmoid_backward(dy, **inputs)


def _calls(rng: np.random.Generator, n: int) -> list[Call]:
    inputs = _inputs(rng, n)
    exact = {"x": inputs["x"].astype(np.float64)}
    dy = rng.standard_normal(n).astype(np.float32)
    return [
        call("forward", {"y": _function(exact, n)}, inputs, in_place={"y": "x"}),
        call(
            "backward",
            _gradients(exact, dy.astype(np.float64), n),
            {"dy": dy, **inputs},
            in_place={"dx": "dy"},
        ),
    ]


CASE = OpCase(
    op="sigmoid",
    shapes=({"n": 1}, {"n": 37}, {"n": 0}, {"n": 4096}, {"n": 4097}),
    bench={"router": {"n": 4096 * 256}},
    calls=_calls,
    tolerance=2e-7,
    reason="a few roundings; exp within 2 units in the last place",
    inputs=_inputs,
    function=_function,
    gradients=_gradients,
)
