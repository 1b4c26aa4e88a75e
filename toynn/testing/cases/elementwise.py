"""elementwise: its four doors, and y = alpha (x + a) + b, whose gradients they make."""

import numpy as np

from toynn.backends.reference import pointwise
from toynn.testing.cases._case import Array, Call, OpCase, call

ALPHA = -0.75


def _inputs(rng: np.random.Generator, N: int, C: int) -> dict[str, Array]:
    return {
        "x": rng.standard_normal((N, C)).astype(np.float32),
        "a": rng.standard_normal((N, C)).astype(np.float32),
        "b": rng.standard_normal(C).astype(np.float32),
    }


def _function(inputs: dict[str, Array], N: int, C: int) -> Array:
    y = pointwise.add(inputs["x"], inputs["a"])["y"]
    return pointwise.scale(y, ALPHA)["y"] + inputs["b"]


def _gradients(inputs: dict[str, Array], dy: Array, N: int, C: int) -> dict[str, Array]:
    scaled = pointwise.scale(dy, ALPHA)["y"]
    return {"dx": scaled, "da": scaled, **pointwise.bias_backward(dy)}


def _calls(rng: np.random.Generator, N: int, C: int) -> list[Call]:
    inputs = _inputs(rng, N, C)
    x, a = (inputs[name].astype(np.float64) for name in "xa")
    flat = {"a": inputs["a"].ravel(), "b": inputs["x"].ravel()}
    return [
        call(
            "add",
            pointwise.add(a.ravel(), x.ravel()),
            flat,
        ),
        call(
            "scale",
            pointwise.scale(x.ravel(), ALPHA),
            {"x": inputs["x"].ravel()},
            alpha=ALPHA,
        ),
        call(
            "accumulate",
            pointwise.accumulate(x.ravel()),
            {"x": inputs["x"].ravel()},
        ),
        call(
            "bias_backward",
            pointwise.bias_backward(x),
            {"dy": inputs["x"]},
        ),
    ]


CASE = OpCase(
    op="elementwise",
    shapes=(
        {"N": 1, "C": 1},
        {"N": 37, "C": 130},
        {"N": 3, "C": 65},
        {"N": 0, "C": 8},
        {"N": 2, "C": 0},
        {"N": 17, "C": 241},
    ),
    bench={"gpt2_124m": {"N": 256, "C": 768}},
    calls=_calls,
    tolerance=5e-7,
    reason="one rounding; db: float32 sums of up to 37 terms, one after the other",
    inputs=_inputs,
    function=_function,
    gradients=_gradients,
)
