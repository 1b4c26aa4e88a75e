"""elementwise: its five doors, and their composition y = alpha (x + a) + b for the gradient."""

import numpy as np

from toynn.testing.cases._case import Array, Call, OpCase, call

ALPHA = -0.75


def _inputs(rng: np.random.Generator, N: int, C: int) -> dict[str, Array]:
    return {
        "x": rng.standard_normal((N, C)).astype(np.float32),
        "a": rng.standard_normal((N, C)).astype(np.float32),
        "b": rng.standard_normal(C).astype(np.float32),
    }


def _function(inputs: dict[str, Array], N: int, C: int) -> Array:
    return ALPHA * (inputs["x"] + inputs["a"]) + inputs["b"]


def _gradients(inputs: dict[str, Array], dy: Array, N: int, C: int) -> dict[str, Array]:
    return {"dx": ALPHA * dy, "da": ALPHA * dy, "db": dy.sum(axis=0)}


def _calls(rng: np.random.Generator, N: int, C: int) -> list[Call]:
    inputs = _inputs(rng, N, C)
    x, a, b = (value.astype(np.float64) for value in inputs.values())
    flat = {"a": inputs["a"].ravel(), "b": inputs["x"].ravel()}
    return [
        call("add", {"y": (a + x).ravel()}, flat, in_place={"y": "a"}, flops=N * C),
        call(
            "scale",
            {"y": (ALPHA * x).ravel()},
            {"x": inputs["x"].ravel()},
            in_place={"y": "x"},
            flops=N * C,
            alpha=ALPHA,
        ),
        call(
            "accumulate",
            {"g": x.ravel()},
            {"x": inputs["x"].ravel()},
            accumulates=("g",),
            flops=N * C,
        ),
        call(
            "bias",
            {"y": x + b},
            {"x": inputs["x"], "b": inputs["b"]},
            in_place={"y": "x"},
            flops=N * C,
        ),
        call(
            "bias_backward",
            {"db": x.sum(axis=0)},
            {"dy": inputs["x"]},
            accumulates=("db",),
            flops=N * C,
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
