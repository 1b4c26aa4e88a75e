"""elementwise: its four entries, and the gradients of y = alpha (x + a) + b, which they compute."""

import numpy as np

from toynn.testing.cases._case import Array, Call, OpCase, derived, normal, reference

ALPHA = {"alpha": -0.75}


def _inputs(rng: np.random.Generator, N: int, C: int) -> dict[str, Array]:
    return {"x": normal(rng, N, C), "a": normal(rng, N, C), "b": normal(rng, C)}


def _scaled(x: Array) -> Array:
    return reference("elementwise.scale", {"x": x}, ALPHA)["y"]


def _function(given: dict[str, Array], N: int, C: int) -> Array:
    total = reference("elementwise.add", {"a": given["x"], "b": given["a"]}, {})["y"]
    return _scaled(total) + given["b"]


def _gradients(given: dict[str, Array], dy: Array, N: int, C: int) -> dict[str, Array]:
    bias = reference("elementwise.bias_backward", {"dy": dy}, {})
    return {"dx": _scaled(dy), "da": _scaled(dy), **bias}


def _calls(rng: np.random.Generator, N: int, C: int) -> list[Call]:
    x, a = normal(rng, 2, N, C)
    given = {"a": a.ravel(), "b": x.ravel(), "x": x.ravel(), "dy": x}
    entries = ("add", "scale", "accumulate", "bias_backward")
    return [derived(f"elementwise.{entry}", given, ALPHA) for entry in entries]


CASE = OpCase(
    op="elementwise",
    inputs=_inputs,
    function=_function,
    gradients=_gradients,
    calls=_calls,
    shapes=(
        {"N": 1, "C": 1},
        {"N": 37, "C": 130},
        {"N": 3, "C": 65},
        {"N": 0, "C": 8},
        {"N": 2, "C": 0},
        {"N": 17, "C": 241},
    ),
    bench={"gpt2_124m": {"N": 256, "C": 768}},
    tolerance=5e-7,
    reason="one rounding; db: float32 sums of up to 37 terms, one after the other",
)
