"""shortconv against sums over shifted rows, in float64."""

from typing import Any

import numpy as np

from toynn.backends.reference import rows
from toynn.testing.cases._case import Array, Call, OpCase, call
from toynn.testing.cases.attention import segment_starts

RING = 80


def _inputs(
    rng: np.random.Generator,
    B: int,
    T: int,
    C: int,
    L: int,
    P: int = 3,
    segments: int = 0,
    **_: int,
) -> dict[str, Array]:
    arrays: dict[str, Array] = {
        "x": rng.standard_normal((B * T, P * C)).astype(np.float32),
        "w": rng.standard_normal((C, L)).astype(np.float32),
    }
    return arrays | {"first": segment_starts(B, T, segments)} if segments else arrays


def _sizes(sizes: dict[str, int]) -> dict[str, int]:
    return {name: sizes[name] for name in ("B", "T")} | {"P": sizes.get("P", 3)}


def _function(inputs: dict[str, Array], **sizes: int) -> Array:
    return rows.shortconv(**inputs, **_sizes(sizes))["y"]


def _gradients(inputs: dict[str, Array], dy: Array, **sizes: int) -> dict[str, Array]:
    return rows.shortconv_backward(dy, **inputs, **_sizes(sizes))


def _calls(rng: np.random.Generator, **sizes: int) -> list[Call]:
    inputs = _inputs(rng, **sizes)
    exact = {name: x if name == "first" else x.astype(np.float64) for name, x in inputs.items()}
    dy = rng.standard_normal((len(inputs["x"]), len(inputs["w"]))).astype(np.float32)
    batch: dict[str, Any] = {"B": sizes["B"]}
    calls = [
        call("forward", {"y": _function(exact, **sizes)}, inputs, **batch),
        call(
            "backward",
            _gradients(exact, dy.astype(np.float64), **sizes),
            {"dy": dy, **inputs},
            **batch,
        ),
    ]
    if "past" not in sizes:
        return calls
    past = sizes["past"] // np.arange(1, sizes["B"] + 1)
    ring = rng.standard_normal((sizes["B"], RING, sizes["C"])).astype(np.float32)
    given = {"x": inputs["x"], "w": inputs["w"], "past": past.astype(np.int32)}
    wide = {name: given[name].astype(np.float64) for name in "xw"}
    written = rows.shortconv_cached(
        ring.astype(np.float64), **wide, past=past, T=sizes["T"], P=sizes.get("P", 3)
    )
    return [
        *calls,
        call("cached", written, given, initial={"ring": ring}),
    ]


CASE = OpCase(
    op="shortconv",
    shapes=(
        {"B": 1, "T": 1, "C": 1, "L": 1, "past": 0},
        {"B": 2, "T": 9, "C": 5, "L": 3, "past": 1},
        {"B": 1, "T": 70, "C": 65, "L": 4, "past": 79},
        {"B": 2, "T": 1, "C": 33, "L": 3, "past": 500},
        {"B": 1, "T": 2, "C": 8, "L": 7, "past": 3},
        {"B": 2, "T": 9, "C": 65, "L": 4, "P": 1, "past": 79},
        {"B": 0, "T": 4, "C": 8, "L": 3},
        {"B": 2, "T": 9, "C": 5, "L": 4, "P": 1},
        {"B": 2, "T": 0, "C": 8, "L": 3},
        {"B": 2, "T": 200, "C": 6, "L": 3, "segments": 1},
        {"B": 3, "T": 7, "C": 4, "L": 5, "segments": 4},
        {"B": 3, "T": 7, "C": 4, "L": 5, "P": 1, "segments": 4},
    ),
    bench={
        "lfm2_350m": {"B": 1, "T": 256, "C": 1024, "L": 3},
        "qwen35_0.8b": {"B": 1, "T": 256, "C": 6144, "L": 4, "P": 1},
    },
    calls=_calls,
    tolerance=1e-6,
    reason="float32 sums of up to 400 terms, one after the other; products of four factors",
    inputs=_inputs,
    function=_function,
    gradients=_gradients,
)
