"""swiglu against gate / (1 + exp(-gate)) * up, and the same within a limit."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from toynn.backends.reference import pointwise
from toynn.testing.cases._case import Array, Call, OpCase, call

#: What gpt-oss has beside a limit.
ALPHA = 1.702


def _options(sizes: Mapping[str, int]) -> dict[str, float]:
    return {"alpha": ALPHA, "limit": sizes["limit"]} if sizes.get("limit") else {}


def _inputs(rng: np.random.Generator, N: int, F: int, **_: int) -> dict[str, Array]:
    gate, up = rng.standard_normal((2, N * F)).astype(np.float32)
    gate[::4] *= 16
    return {"gate": gate, "up": up}


def _function(inputs: dict[str, Array], **sizes: int) -> Array:
    return pointwise.swiglu(**inputs, **_options(sizes))["y"]


def _gradients(inputs: dict[str, Array], dy: Array, **sizes: int) -> dict[str, Array]:
    return pointwise.swiglu_backward(dy, **inputs, **_options(sizes))


def _calls(rng: np.random.Generator, N: int, F: int, **more: int) -> list[Call]:
    inputs = _inputs(rng, N, F)
    exact = {name: value.astype(np.float64) for name, value in inputs.items()}
    dy = rng.standard_normal(N * F).astype(np.float32)
    y = _function(exact, **more)
    gradients = _gradients(exact, dy.astype(np.float64), **more)
    options: dict[str, Any] = {"alpha": 1.0, "limit": 0.0} | _options(more)
    x = np.hstack([array.reshape(N, F) for array in inputs.values()])
    dx = np.hstack([array.reshape(N, F) for array in gradients.values()])
    rows = dy.reshape(N, F)
    whole = [
        call("forward", {"y": y}, inputs, **options),
        call(
            "backward",
            gradients,
            {"dy": dy, **inputs},
            **options,
        ),
    ]
    if more.get("limit"):  # halves have none
        return whole
    return [
        *whole,
        call("halves_forward", {"y": y.reshape(N, F)}, {"x": x}),
        call("halves_backward", {"dx": dx}, {"dy": rows, "x": x}),
    ]


CASE = OpCase(
    op="swiglu",
    shapes=(
        {"N": 1, "F": 1},
        {"N": 1, "F": 37},
        {"N": 0, "F": 8},
        {"N": 3, "F": 0},
        {"N": 1, "F": 4096},
        {"N": 17, "F": 241},
        {"N": 1, "F": 4100, "limit": 1},
    ),
    bench={"llama_135m": {"N": 256, "F": 1536}},
    calls=_calls,
    tolerance=2e-7,
    reason="a few roundings; exp within 2 units in the last place",
    inputs=_inputs,
    function=_function,
    gradients=_gradients,
)
