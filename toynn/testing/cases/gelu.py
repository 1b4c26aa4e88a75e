"""gelu against x P(x) with the error function of the math module, and its tanh form."""

from typing import Any

import numpy as np

from toynn.backends.reference import pointwise
from toynn.testing.cases._case import Array, Call, OpCase, call


def _inputs(rng: np.random.Generator, n: int, exact: int) -> dict[str, Array]:
    """Values around 0 and, every fourth one, out to where gelu is flat or straight."""
    x = rng.standard_normal(n).astype(np.float32)
    x[::4] *= 8
    return {"x": x}


def _function(inputs: dict[str, Array], n: int, exact: int) -> Array:
    return pointwise.gelu(inputs["x"], exact)["y"]


def _gradients(inputs: dict[str, Array], dy: Array, n: int, exact: int) -> dict[str, Array]:
    return pointwise.gelu_backward(dy, inputs["x"], exact)


def _calls(rng: np.random.Generator, **sizes: int) -> list[Call]:
    inputs = _inputs(rng, **sizes)
    n, exact = sizes["n"], bool(sizes["exact"])
    x = inputs["x"].astype(np.float64)
    dy = rng.standard_normal(n).astype(np.float32)
    options: dict[str, Any] = {"exact": exact}
    return [
        call(
            "forward",
            {"y": _function({"x": x}, **sizes)},
            inputs,
            in_place={"y": "x"},
            **options,
        ),
        call(
            "backward",
            _gradients({"x": x}, dy.astype(np.float64), **sizes),
            {"dy": dy, **inputs},
            in_place={"dx": "dy"},
            **options,
        ),
    ]


CASE = OpCase(
    op="gelu",
    shapes=(
        {"n": 1, "exact": 0},
        {"n": 37, "exact": 0},
        {"n": 0, "exact": 0},
        {"n": 4097, "exact": 0},
        {"n": 37, "exact": 1},
        {"n": 4097, "exact": 1},
    ),
    bench={"gpt2_124m": {"n": 256 * 3072, "exact": 0}, "vit": {"n": 197 * 768, "exact": 1}},
    calls=_calls,
    tolerance=4e-7,
    reason="a few roundings; exp within 2, erf within 5 units in the last place",
    inputs=_inputs,
    function=_function,
    gradients=_gradients,
)
