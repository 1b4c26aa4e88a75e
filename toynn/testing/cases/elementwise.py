"""elementwise: its four entries, and the gradients of y = alpha (x + a) + b, which they compute."""

import numpy as np

from toynn.testing.cases._case import Array, Call, OpCase, derived, normal, reference, shapes_of

ALPHA = {"alpha": -0.75}


def _inputs(rng: np.random.Generator, N: int, C: int) -> dict[str, Array]:
    return {"x": normal(rng, N, C), "a": normal(rng, N, C), "b": normal(rng, C)}


def _scaled(x: Array) -> Array:
    return reference("elementwise.scale", {"x": x}, ALPHA)["y"]


def _function(arrays: dict[str, Array], N: int, C: int) -> Array:
    total = reference("elementwise.add", {"a": arrays["x"], "b": arrays["a"]}, {})["y"]
    return _scaled(total) + arrays["b"]


def _gradients(arrays: dict[str, Array], dy: Array, N: int, C: int) -> dict[str, Array]:
    bias = reference("elementwise.bias_backward", {"dy": dy}, {})
    return {"dx": _scaled(dy), "da": _scaled(dy), **bias}


def _calls(rng: np.random.Generator, N: int, C: int) -> list[Call]:
    x, a = normal(rng, 2, N, C)
    arrays = {"a": a.ravel(), "b": x.ravel(), "x": x.ravel(), "dy": x}
    entries = ("add", "scale", "accumulate", "bias_backward")
    return [derived(f"elementwise.{entry}", arrays, ALPHA) for entry in entries]


CASE = OpCase(
    op="elementwise",
    inputs=_inputs,
    function=_function,
    gradients=_gradients,
    calls=_calls,
    shapes=shapes_of("N C", "1 1, 37 130, 3 65, 0 8, 2 0, 17 241"),
    bench={"gpt2_124m": {"N": 256, "C": 768}},
    tolerance=5e-7,
    reason="one rounding; db: float32 sums of up to 37 terms, one after the other",
)
