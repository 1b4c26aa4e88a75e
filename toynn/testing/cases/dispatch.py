"""dispatch against NumPy's indexing by slots, which are a permutation of the copies."""

from typing import Any

import numpy as np

from toynn.testing.cases._case import Array, Call, OpCase, derived, normal, reference, shapes_of


def _inputs(rng: np.random.Generator, N: int, K: int, C: int) -> dict[str, Array]:
    slots = rng.permutation(N * K).reshape(N, K).astype(np.int32)
    return {"x": normal(rng, N, C), "w": normal(rng, N, K), "slots": slots}


def _run(entry: str, read: dict[str, Array], **arrays: Array) -> dict[str, Array]:
    return reference(f"dispatch.{entry}", {**read, **arrays}, {})


def _function(arrays: dict[str, Array], **_: Any) -> Array:
    """Compute the weighted sum of the copies of each row: x times the sum of w."""
    weighed = _run("weigh", arrays, x=_run("forward", arrays)["y"])["y"]
    return _run("combine", arrays, x=weighed)["y"]


def _gradients(arrays: dict[str, Array], dy: Array, **_: Any) -> dict[str, Array]:
    copies = {"x": _run("forward", arrays)["y"], "dy": _run("forward", arrays, x=dy)["y"]}
    weighed = _run("weigh_backward", arrays, **copies)
    return {"dx": _run("combine", arrays, x=weighed["dx"])["y"], "dw": weighed["dw"]}


def _calls(rng: np.random.Generator, N: int, K: int, C: int) -> list[Call]:
    arrays = _inputs(rng, N, K, C)
    copies, dy = normal(rng, 2, N * K, C)
    sorted_ = {**arrays, "x": copies, "dy": dy}
    later = ("combine", "weigh", "weigh_backward")
    return [
        derived("dispatch.forward", arrays),
        *(derived(f"dispatch.{entry}", sorted_) for entry in later),
    ]


CASE = OpCase(
    op="dispatch",
    inputs=_inputs,
    function=_function,
    gradients=_gradients,
    calls=_calls,
    shapes=shapes_of("N K C", "37 3 19, 9 8 130, 1 1 1, 0 2 4, 5 2 0"),
    bench={"qwen3_30b_a3b": {"N": 256, "K": 8, "C": 2048}},
    tolerance=1e-6,
    reason="sums of up to eight copies; dot products of 130",
)
