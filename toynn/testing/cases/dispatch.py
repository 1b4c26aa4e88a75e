"""dispatch against NumPy's indexing by slots, which are a permutation of the copies."""

from typing import Any

import numpy as np

from toynn.backends.reference import experts
from toynn.testing.cases._case import Array, Call, OpCase, call


def _inputs(rng: np.random.Generator, N: int, K: int, C: int) -> dict[str, Array]:
    return {
        "x": rng.standard_normal((N, C)).astype(np.float32),
        "w": rng.standard_normal((N, K)).astype(np.float32),
        "slots": rng.permutation(N * K).reshape(N, K).astype(np.int32),
    }


def _function(inputs: dict[str, Array], **_: Any) -> Array:
    """Compute the weighted sum of the copies of each row: x times the sum of w."""
    slots = inputs["slots"]
    copies = experts.dispatch(inputs["x"], slots)["y"]
    return experts.combine(experts.weigh(copies, inputs["w"], slots)["y"], slots)["y"]


def _gradients(inputs: dict[str, Array], dy: Array, **_: Any) -> dict[str, Array]:
    slots = inputs["slots"]
    copies = experts.dispatch(inputs["x"], slots)["y"]
    weighed = experts.weigh_backward(experts.dispatch(dy, slots)["y"], copies, inputs["w"], slots)
    return {"dx": experts.combine(weighed["dx"], slots)["y"], "dw": weighed["dw"]}


def _calls(rng: np.random.Generator, N: int, K: int, C: int) -> list[Call]:
    inputs = _inputs(rng, N, K, C)
    slots = {"slots": inputs["slots"]}
    copies, dy = rng.standard_normal((2, N * K, C)).astype(np.float32)
    exact, d_exact = copies.astype(np.float64), dy.astype(np.float64)
    x, w = inputs["x"].astype(np.float64), inputs["w"].astype(np.float64)
    free = ("slots",)  # it is what fixes the others
    return [
        call("forward", experts.dispatch(x, **slots), {"x": inputs["x"]} | slots, free=free),
        call("combine", experts.combine(exact, **slots), {"x": copies} | slots, free=free),
        call(
            "weigh",
            experts.weigh(exact, w, **slots),
            {"x": copies, "w": inputs["w"]} | slots,
            free=free,
        ),
        call(
            "weigh_backward",
            experts.weigh_backward(d_exact, exact, w, **slots),
            {"dy": dy, "x": copies, "w": inputs["w"]} | slots,
            free=free,
        ),
    ]


CASE = OpCase(
    op="dispatch",
    shapes=(
        {"N": 37, "K": 3, "C": 19},
        {"N": 9, "K": 8, "C": 130},
        {"N": 1, "K": 1, "C": 1},
        {"N": 0, "K": 2, "C": 4},
        {"N": 5, "K": 2, "C": 0},
    ),
    bench={"qwen3_30b_a3b": {"N": 256, "K": 8, "C": 2048}},
    calls=_calls,
    tolerance=1e-6,
    reason="sums of up to eight copies; dot products of 130",
    inputs=_inputs,
    function=_function,
    gradients=_gradients,
)
