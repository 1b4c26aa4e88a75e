"""gelu against x P(x) with the error function of the math module, and its tanh form."""

import math
from typing import Any

import numpy as np

from toynn.testing.cases._case import Array, Call, OpCase, call

_ROOT = math.sqrt(2 / math.pi)


def _inputs(rng: np.random.Generator, n: int, exact: int) -> dict[str, Array]:
    """Values around 0 and, every fourth one, out to where gelu is flat or straight."""
    x = rng.standard_normal(n).astype(np.float32)
    x[::4] *= 8
    return {"x": x}


def _erf(x: Array) -> Array:
    return np.array([math.erf(value) for value in x])


def _function(inputs: dict[str, Array], n: int, exact: int) -> Array:
    x = inputs["x"]
    t = _erf(x / math.sqrt(2)) if exact else np.tanh(_ROOT * (x + 0.044715 * x**3))
    y: Array = x * (1 + t) / 2
    return y


def _gradients(inputs: dict[str, Array], dy: Array, n: int, exact: int) -> dict[str, Array]:
    x = inputs["x"]
    if exact:
        density = np.exp(-x * x / 2) / math.sqrt(2 * math.pi)
        return {"dx": dy * ((1 + _erf(x / math.sqrt(2))) / 2 + x * density)}
    t = np.tanh(_ROOT * (x + 0.044715 * x**3))
    return {"dx": dy * ((1 + t) / 2 + x * (1 - t * t) / 2 * _ROOT * (1 + 0.134145 * x * x))}


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
            flops=20 * n,
            **options,
        ),
        call(
            "backward",
            _gradients({"x": x}, dy.astype(np.float64), **sizes),
            {"dy": dy, **inputs},
            in_place={"dx": "dy"},
            flops=26 * n,
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
