"""class_token against NumPy's concatenate and a sum with broadcasting."""

from typing import Any

import numpy as np

from toynn.backends.reference import rows
from toynn.testing.cases._case import Array, Call, OpCase, call


def _inputs(rng: np.random.Generator, B: int, T: int, C: int) -> dict[str, Array]:
    return {
        "x": rng.standard_normal((B * (T - 1), C)).astype(np.float32),
        "cls": rng.standard_normal(C).astype(np.float32),
        "pos": rng.standard_normal((T, C)).astype(np.float32),
    }


def _function(inputs: dict[str, Array], B: int, **_: Any) -> Array:
    return rows.class_token(**inputs, B=B)["y"]


def _gradients(inputs: dict[str, Array], dy: Array, B: int, T: int, **_: Any) -> dict[str, Array]:
    return rows.class_token_backward(dy, B, T)


def _calls(rng: np.random.Generator, B: int, T: int, C: int) -> list[Call]:
    inputs = _inputs(rng, B, T, C)
    exact = {name: value.astype(np.float64) for name, value in inputs.items()}
    dy = rng.standard_normal((B * T, C)).astype(np.float32)
    return [
        call("forward", {"y": _function(exact, B)}, inputs),
        call(
            "backward",
            _gradients(exact, dy.astype(np.float64), B, T),
            {"dy": dy},
        ),
    ]


CASE = OpCase(
    op="class_token",
    shapes=(
        {"B": 1, "T": 1, "C": 1},
        {"B": 3, "T": 5, "C": 130},
        {"B": 1, "T": 17, "C": 65},
        {"B": 0, "T": 5, "C": 8},
        {"B": 4, "T": 1, "C": 3},
        {"B": 2, "T": 3, "C": 0},
    ),
    bench={"vit_tiny": {"B": 16, "T": 197, "C": 192}},
    calls=_calls,
    tolerance=2e-6,
    reason="forward is one sum; backward adds up to 4 rows in float32, in their order",
    inputs=_inputs,
    function=_function,
    gradients=_gradients,
)
