"""gated against o sigmoid(gate) in float64, and the copy of the queries beside the gates."""

import numpy as np

from toynn.testing.cases._case import Array, Call, OpCase, derived, normal, reference

NO_GATE = {"x": "the gates are not read here"}
NO_QUERY = {"x": "the queries are not read here"}


def _inputs(rng: np.random.Generator, N: int, H: int, D: int) -> dict[str, Array]:
    return {"o": normal(rng, N, H, D), "x": normal(rng, N, H, 2, D, scale=2)}


def _function(given: dict[str, Array], **_: int) -> Array:
    """Add the result of the queries to that of the gates, so that one y depends on both."""
    queries = reference("gated.queries", given, {})["q"]
    return reference("gated.forward", given, {})["y"] + queries


def _gradients(given: dict[str, Array], dy: Array, **_: int) -> dict[str, Array]:
    found = reference("gated.backward", {**given, "dy": dy}, {})
    queries = reference("gated.queries_backward", {"dq": dy}, {})
    return {"do": found["do"], "dx": found["dx"] + queries["dx"]}


def _calls(rng: np.random.Generator, **sizes: int) -> list[Call]:
    given = _inputs(rng, **sizes)
    given["dy"] = given["dq"] = normal(rng, *given["o"].shape)
    return [
        derived("gated.forward", given, loses_nan=NO_QUERY),
        derived("gated.backward", given, loses_nan=NO_QUERY),
        derived("gated.queries", given, {"part": 0}, loses_nan=NO_GATE),
        derived("gated.queries_backward", given, {"part": 0}),
        derived("gated.queries", given, {"part": 1}, loses_nan=NO_QUERY),
        derived("gated.queries_backward", given, {"part": 1}),
    ]


CASE = OpCase(
    op="gated",
    inputs=_inputs,
    function=_function,
    gradients=_gradients,
    calls=_calls,
    shapes=(
        {"N": 1, "H": 1, "D": 1},
        {"N": 7, "H": 3, "D": 5},
        {"N": 5, "H": 2, "D": 64},
        {"N": 0, "H": 2, "D": 4},
    ),
    bench={"qwen35_0.8b": {"N": 256, "H": 8, "D": 256}},
    tolerance=1e-6,
    reason="three roundings; the sigmoid is within 3 units in the last place",
)
