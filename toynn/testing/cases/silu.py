"""silu against x / (1 + exp(-x))."""

import numpy as np

from toynn.backends.reference import pointwise
from toynn.testing.cases._case import Array, Call, OpCase, call


def _inputs(rng: np.random.Generator, n: int) -> dict[str, Array]:
    """Values around 0 and, every fourth one, out to where silu is flat or straight."""
    x = rng.standard_normal(n).astype(np.float32)
    x[::4] *= 16
    return {"x": x}


def _function(inputs: dict[str, Array], n: int) -> Array:
    return pointwise.silu(**inputs)["y"]


def _gradients(inputs: dict[str, Array], dy: Array, n: int) -> dict[str, Array]:
    return pointwise.silu_backward(dy, **inputs)


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
    op="silu",
    shapes=({"n": 1}, {"n": 37}, {"n": 0}, {"n": 4096}, {"n": 4097}),
    bench={"llama_135m": {"n": 256 * 1536}},
    calls=_calls,
    tolerance=2e-7,
    reason="a few roundings; exp within 2 units in the last place",
    inputs=_inputs,
    function=_function,
    gradients=_gradients,
)
