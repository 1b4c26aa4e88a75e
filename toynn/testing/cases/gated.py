"""gated against o sigmoid(gate) in float64, and the way of the queries beside their gates."""

import numpy as np

from toynn.backends.reference import recurrent
from toynn.testing.cases._case import Array, Call, OpCase, call


def _inputs(rng: np.random.Generator, N: int, H: int, D: int) -> dict[str, Array]:
    return {
        "o": rng.standard_normal((N, H, D)).astype(np.float32),
        "x": (2 * rng.standard_normal((N, H, 2, D))).astype(np.float32),
    }


def _function(inputs: dict[str, Array], **_: int) -> Array:
    """Add what depends on the queries and what depends on the gates."""
    return recurrent.gated(**inputs)["y"] + recurrent.queries(inputs["x"])["q"]


def _gradients(inputs: dict[str, Array], dy: Array, **_: int) -> dict[str, Array]:
    found = recurrent.gated_backward(dy, **inputs)
    return {"do": found["do"], "dx": found["dx"] + recurrent.queries_backward(dy)["dx"]}


def _calls(rng: np.random.Generator, **sizes: int) -> list[Call]:
    inputs = _inputs(rng, **sizes)
    exact = {name: each.astype(np.float64) for name, each in inputs.items()}
    dy = rng.standard_normal(inputs["o"].shape).astype(np.float32)
    wide = dy.astype(np.float64)
    no_gate = {"x": "a gate is no part of the queries"}
    no_query = {"x": "a query is no part of the gates"}
    return [
        call("forward", recurrent.gated(**exact), inputs, loses_nan=no_query),
        call(
            "backward",
            recurrent.gated_backward(wide, **exact),
            {"dy": dy, **inputs},
            loses_nan=no_query,
        ),
        call("queries", recurrent.queries(exact["x"]), {"x": inputs["x"]}, loses_nan=no_gate),
        call("queries_backward", recurrent.queries_backward(wide), {"dq": dy}),
    ]


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
