"""gated against o sigmoid(gate) in float64, and the way of the queries beside their gates."""

from math import prod
from typing import Any

import numpy as np

from toynn.backends.reference import recurrent
from toynn.testing.cases._case import Array, Call, OpCase, call


def _inputs(rng: np.random.Generator, N: int, H: int, D: int) -> dict[str, Array]:
    return {
        "o": rng.standard_normal((N, H * D)).astype(np.float32),
        "x": (2 * rng.standard_normal((N, 2 * H * D))).astype(np.float32),
    }


def _split(inputs: dict[str, Array], N: int, H: int, D: int) -> tuple[Array, Array]:
    return inputs["o"].reshape(N, H, D), inputs["x"].reshape(N, H, 2, D)


def _flat(outputs: dict[str, Array], N: int) -> dict[str, Array]:
    return {name: value.reshape(N, prod(value.shape[1:])) for name, value in outputs.items()}


def _function(inputs: dict[str, Array], **sizes: int) -> Array:
    """Add what depends on the queries and what depends on the gates."""
    o, x = _split(inputs, **sizes)
    return (recurrent.gated(o, x)["y"] + recurrent.queries(x)["q"]).reshape(inputs["o"].shape)


def _gradients(inputs: dict[str, Array], dy: Array, **sizes: int) -> dict[str, Array]:
    o, x = _split(inputs, **sizes)
    dy = dy.reshape(o.shape)
    found = recurrent.gated_backward(dy, o, x)
    return _flat(
        {"do": found["do"], "dx": found["dx"] + recurrent.queries_backward(dy)["dx"]}, sizes["N"]
    )


def _calls(rng: np.random.Generator, **sizes: int) -> list[Call]:
    inputs, N = _inputs(rng, **sizes), sizes["N"]
    o, x = _split({name: each.astype(np.float64) for name, each in inputs.items()}, **sizes)
    dy = rng.standard_normal(inputs["o"].shape).astype(np.float32)
    wide = dy.astype(np.float64).reshape(o.shape)
    heads: dict[str, Any] = {"heads": sizes["H"]}
    passed: dict[str, Any] = {"loses_nan": {"x": "a gate is no part of the queries"}}
    return [
        call("forward", _flat(recurrent.gated(o, x), N), inputs, in_place={"y": "o"},
             loses_nan={"x": "a query is no part of the gates"}, **heads),
        call("backward", _flat(recurrent.gated_backward(wide, o, x), N), {"dy": dy, **inputs},
             in_place={"do": "dy"}, loses_nan={"x": "as forward"}, **heads),
        call("queries", _flat(recurrent.queries(x), N), {"x": inputs["x"]}, **passed, **heads),
        call("queries_backward", _flat(recurrent.queries_backward(wide), N), {"dq": dy}, **heads),
    ]  # fmt: skip


CASE = OpCase(
    op="gated",
    shapes=(
        {"N": 1, "H": 1, "D": 1},
        {"N": 7, "H": 3, "D": 5},
        {"N": 5, "H": 2, "D": 64},
        {"N": 0, "H": 2, "D": 4},
    ),
    bench={"qwen35_0.8b": {"N": 256, "H": 8, "D": 256}},
    calls=_calls,
    tolerance=1e-6,
    reason="three roundings; the sigmoid is within 3 units in the last place",
    inputs=_inputs,
    function=_function,
    gradients=_gradients,
)
