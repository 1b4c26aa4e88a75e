"""gated against o sigmoid(gate) in float64, and the copy of the queries beside the gates."""

import numpy as np

from toynn.testing.cases._case import Array, Call, OpCase, derived, normal, reference, shapes_of

NO_GATE = {"x": "the gates are not read here"}
NO_QUERY = {"x": "the queries are not read here"}


def _inputs(rng: np.random.Generator, N: int, H: int, D: int) -> dict[str, Array]:
    return {"o": normal(rng, N, H, D), "x": normal(rng, N, H, 2, D, scale=2)}


def _function(arrays: dict[str, Array], **_: int) -> Array:
    """Add the result of the queries to that of the gates, so that one y depends on both."""
    queries = reference("gated.queries", arrays, {})["q"]
    return reference("gated.forward", arrays, {})["y"] + queries


def _gradients(arrays: dict[str, Array], dy: Array, **_: int) -> dict[str, Array]:
    gates = reference("gated.backward", {**arrays, "dy": dy}, {})
    queries = reference("gated.queries_backward", {"dq": dy}, {})
    return {"do": gates["do"], "dx": gates["dx"] + queries["dx"]}


def _calls(rng: np.random.Generator, **sizes: int) -> list[Call]:
    arrays = _inputs(rng, **sizes)
    arrays["dy"] = arrays["dq"] = normal(rng, *arrays["o"].shape)
    return [
        derived("gated.forward", arrays, loses_nan=NO_QUERY),
        derived("gated.backward", arrays, loses_nan=NO_QUERY),
        derived("gated.queries", arrays, {"part": 0}, loses_nan=NO_GATE),
        derived("gated.queries_backward", arrays, {"part": 0}),
        derived("gated.queries", arrays, {"part": 1}, loses_nan=NO_QUERY),
        derived("gated.queries_backward", arrays, {"part": 1}),
    ]


CASE = OpCase(
    op="gated",
    inputs=_inputs,
    function=_function,
    gradients=_gradients,
    calls=_calls,
    shapes=shapes_of("N H D", "1 1 1, 7 3 5, 5 2 64, 0 2 4"),
    bench={"qwen35_0.8b": {"N": 256, "H": 8, "D": 256}},
    tolerance=1e-6,
    reason="three roundings; the sigmoid is within 3 units in the last place",
)
