"""rmsnorm against y = x / sqrt(mean(x^2) + eps) * w."""

from typing import Any

import numpy as np

from toynn.backends.reference import rows
from toynn.testing.cases._case import Array, Call, OpCase, call

EPS = 1e-5


def _inputs(rng: np.random.Generator, N: int, C: int) -> dict[str, Array]:
    return {
        "x": rng.standard_normal((N, C)).astype(np.float32),
        "w": rng.standard_normal(C).astype(np.float32),
    }


def _function(inputs: dict[str, Array], **_: Any) -> Array:
    return rows.rmsnorm(**inputs, eps=EPS)["y"]


def _gradients(inputs: dict[str, Array], dy: Array, **_: Any) -> dict[str, Array]:
    return rows.rmsnorm_backward(dy, **inputs, r=rows.rmsnorm(**inputs, eps=EPS)["r"])


def _calls(rng: np.random.Generator, N: int, C: int) -> list[Call]:
    inputs = _inputs(rng, N, C)
    exact = {name: value.astype(np.float64) for name, value in inputs.items()}
    dy = rng.standard_normal((N, C)).astype(np.float32)
    written = rows.rmsnorm(**exact, eps=EPS)
    return [
        call("forward", written, inputs, eps=EPS),
        call(
            "backward",
            _gradients(exact, dy.astype(np.float64)),
            {"dy": dy, **inputs, "r": written["r"]},
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
