"""dispatch against NumPy's indexing by slots, which are a permutation of the copies."""

from typing import Any

import numpy as np

from toynn.testing.cases._case import Array, Call, OpCase, derived, normal, reference


def _inputs(rng: np.random.Generator, N: int, K: int, C: int) -> dict[str, Array]:
    slots = rng.permutation(N * K).reshape(N, K).astype(np.int32)
    return {"x": normal(rng, N, C), "w": normal(rng, N, K), "slots": slots}


def _run(entry: str, given: dict[str, Array], **arrays: Array) -> dict[str, Array]:
    return reference(f"dispatch.{entry}", {**given, **arrays}, {})


def _function(given: dict[str, Array], **_: Any) -> Array:
    """Compute the weighted sum of the copies of each row: x times the sum of w."""
    weighed = _run("weigh", given, x=_run("forward", given)["y"])["y"]
    return _run("combine", given, x=weighed)["y"]


def _gradients(given: dict[str, Array], dy: Array, **_: Any) -> dict[str, Array]:
    copies = {"x": _run("forward", given)["y"], "dy": _run("forward", given, x=dy)["y"]}
    weighed = _run("weigh_backward", given, **copies)
    return {"dx": _run("combine", given, x=weighed["dx"])["y"], "dw": weighed["dw"]}


def _calls(rng: np.random.Generator, N: int, K: int, C: int) -> list[Call]:
    given = _inputs(rng, N, K, C)
    copies, dy = normal(rng, 2, N * K, C)
    sorted_ = {**given, "x": copies, "dy": dy}
    later = ("combine", "weigh", "weigh_backward")
    return [
        derived("dispatch.forward", given),
        *(derived(f"dispatch.{entry}", sorted_) for entry in later),
    ]


CASE = OpCase(
    op="dispatch",
    inputs=_inputs,
    function=_function,
    gradients=_gradients,
    calls=_calls,
    shapes=(
        {"N": 37, "K": 3, "C": 19},
        {"N": 9, "K": 8, "C": 130},
        {"N": 1, "K": 1, "C": 1},
        {"N": 0, "K": 2, "C": 4},
        {"N": 5, "K": 2, "C": 0},
    ),
    bench={"qwen3_30b_a3b": {"N": 256, "K": 8, "C": 2048}},
    tolerance=1e-6,
    reason="sums of up to eight copies; dot products of 130",
)
