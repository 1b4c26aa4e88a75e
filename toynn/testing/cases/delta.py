"""delta against the rule itself, row by row, in float64."""

from typing import Any

import numpy as np

from toynn.backends.reference import recurrent
from toynn.testing.cases._case import Array, Call, OpCase, call
from toynn.testing.cases.attention import segment_starts


def _inputs(
    rng: np.random.Generator, B: int, T: int, K: int, V: int, D: int, E: int,
    segments: int = 0, **_: int,
) -> dict[str, Array]:  # fmt: skip
    N = B * T
    arrays: dict[str, Array] = {
        "x": rng.standard_normal((N, 2 * K * D + V * E)).astype(np.float32),
        "g": -rng.exponential(0.3, (N, V)).astype(np.float32),
        "c": rng.standard_normal((N, V)).astype(np.float32),
    }
    return arrays | {"first": segment_starts(B, T, segments)} if segments else arrays


def _sizes(sizes: dict[str, int]) -> dict[str, int]:
    known = {name: sizes[name] for name in ("B", "T", "K", "V", "D", "E", "L")}
    return known | {"S": -(-sizes["T"] // sizes["L"])}


def _function(inputs: dict[str, Array], **sizes: int) -> Array:
    return recurrent.delta(**inputs, **_sizes(sizes))["y"]


def _gradients(inputs: dict[str, Array], dy: Array, **sizes: int) -> dict[str, Array]:
    known = _sizes(sizes)
    states = recurrent.delta(**inputs, **known)["states"]
    known.pop("S")
    return recurrent.delta_backward(dy, **inputs, states=states, **known)


def _calls(rng: np.random.Generator, **sizes: int) -> list[Call]:
    inputs, known = _inputs(rng, **sizes), _sizes(sizes)
    exact = {name: x if name == "first" else x.astype(np.float64) for name, x in inputs.items()}
    found = recurrent.delta(**exact, **known)
    dy = rng.standard_normal(found["y"].shape).astype(np.float32)
    length: dict[str, Any] = {"L": sizes["L"]}
    first = {name: inputs[name] for name in ("first",) if name in inputs}
    read = {name: inputs[name] for name in ("x", "g", "c")}
    states = found["states"].astype(np.float32)
    gradients = _gradients(exact, dy.astype(np.float64), **sizes)
    calls = [
        call("forward", found, inputs, **length),
        call(
            "backward", gradients, {"dy": dy, **read, "states": states, **first},
            loses_nan={"states": "what a sequence begins with is 0"}, **length,
        ),
    ]  # fmt: skip
    if "past" not in sizes:
        return calls
    past = sizes["past"] // np.arange(1, sizes["B"] + 1)
    count = np.maximum(sizes.get("count", sizes["T"]) - 5 * np.arange(sizes["B"]), 0)
    shape = (sizes["B"], sizes["V"], sizes["D"], sizes["E"])
    state = rng.standard_normal(shape).astype(np.float32)
    next_to = {"past": past.astype(np.int32), "count": count.astype(np.int32)}
    wide = {name: read[name].astype(np.float64) for name in read}
    counts = {name: sizes[name] for name in ("T", "K", "V", "D", "E")}
    kept = recurrent.delta_cached(state.astype(np.float64), **wide, **next_to, **counts)
    return [
        *calls,
        call("cached", kept, read | next_to, initial={"state": state}),
    ]


CASE = OpCase(
    op="delta",
    shapes=(
        {"B": 1, "T": 5, "K": 2, "V": 4, "D": 6, "E": 5, "L": 2, "past": 3},
        {"B": 1, "T": 1, "K": 1, "V": 1, "D": 1, "E": 1, "L": 1, "past": 0},
        {"B": 2, "T": 9, "K": 1, "V": 3, "D": 17, "E": 33, "L": 4, "past": 1},
        {"B": 1, "T": 3, "K": 2, "V": 2, "D": 256, "E": 64, "L": 32, "past": 7, "count": 2},
        {"B": 2, "T": 4, "K": 1, "V": 1, "D": 3, "E": 2, "L": 3, "past": 6},
        {"B": 2, "T": 0, "K": 1, "V": 2, "D": 4, "E": 4, "L": 4},
        {"B": 2, "T": 20, "K": 2, "V": 2, "D": 5, "E": 6, "L": 8, "segments": 4},
    ),
    bench={
        "qwen35_0.8b": {"B": 1, "T": 256, "K": 16, "V": 16, "D": 128, "E": 128, "L": 32},
    },
    calls=_calls,
    tolerance=2e-6,
    reason="sums of up to 256 products in float32, one after the other, twice a row",
    inputs=_inputs,
    function=_function,
    gradients=_gradients,
)
