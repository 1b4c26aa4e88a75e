"""rmsnorm against y = x / sqrt(mean(x^2) + eps) * w."""

from typing import Any

import numpy as np

from toynn.testing.cases._case import Array, Call, OpCase, call

EPS = 1e-5


def _inputs(rng: np.random.Generator, N: int, C: int) -> dict[str, Array]:
    return {
        "x": rng.standard_normal((N, C)).astype(np.float32),
        "w": rng.standard_normal(C).astype(np.float32),
    }


def _scale(x: Array, eps: float = EPS) -> Array:
    return 1 / np.sqrt((x * x).mean(axis=1) + eps)


def _function(inputs: dict[str, Array], eps: float = EPS, **_: Any) -> Array:
    x, w = inputs["x"], inputs["w"]
    return x * _scale(x, eps)[:, None] * w


def _gradients(inputs: dict[str, Array], dy: Array, **_: Any) -> dict[str, Array]:
    x, w = inputs["x"], inputs["w"]
    r = _scale(x)[:, None]
    dot = (w * dy * x).mean(axis=1, keepdims=True)
    return {"dx": r * (w * dy - x * r * r * dot), "dw": (dy * x * r).sum(axis=0)}


def _calls(rng: np.random.Generator, N: int, C: int) -> list[Call]:
    inputs = _inputs(rng, N, C)
    exact = {name: value.astype(np.float64) for name, value in inputs.items()}
    dy = rng.standard_normal((N, C)).astype(np.float32)
    r = _scale(exact["x"]) if C else np.full(N, 1 / np.sqrt(EPS))
    return [
        call("forward", {"y": _function(exact), "r": r}, inputs, flops=4 * N * C, eps=EPS),
        call(
            "backward",
            _gradients(exact, dy.astype(np.float64)),
            {"dy": dy, **inputs, "r": r},
            accumulates=("dw",),
            flops=11 * N * C,
        ),
    ]


CASE = OpCase(
    op="rmsnorm",
    shapes=(
        {"N": 1, "C": 1},
        {"N": 37, "C": 130},
        {"N": 3, "C": 65},
        {"N": 0, "C": 8},
        {"N": 129, "C": 768},
    ),
    bench={"llama_135m": {"N": 256, "C": 576}, "gpt2_124m": {"N": 256, "C": 768}},
    calls=_calls,
    tolerance=2e-6,
    reason="float32 sums of up to 768 terms in 16 partial sums",
    inputs=_inputs,
    function=_function,
    gradients=_gradients,
)
