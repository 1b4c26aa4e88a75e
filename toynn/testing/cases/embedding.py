"""embedding against NumPy's fancy indexing, and its transpose."""

from typing import Any

import numpy as np

from toynn.backends.reference import linear
from toynn.testing.cases._case import Array, Call, OpCase, call
from toynn.testing.cases.quants import SCALES, matrix


def _inputs(rng: np.random.Generator, N: int, V: int, C: int, **_: Any) -> dict[str, Array]:
    return {
        "w": rng.standard_normal((V, C)).astype(np.float32),
        "ids": rng.integers(0, V, N).astype(np.int32),
    }


def _function(inputs: dict[str, Array], **_: Any) -> Array:
    return linear.embedding(**inputs)["y"]


def _gradients(inputs: dict[str, Array], dy: Array, **_: Any) -> dict[str, Array]:
    return linear.embedding_backward(dy, inputs["ids"], len(inputs["w"]))


def _calls(rng: np.random.Generator, N: int, V: int, C: int, type: int = 0) -> list[Call]:
    inputs = _inputs(rng, N, V, C)
    exact = {"w": inputs["w"].astype(np.float64), "ids": inputs["ids"]}
    if type:  # quantized weights are frozen
        name, inputs["w"], exact["w"] = matrix(rng, type, V, C)
        return [
            call(
                "forward",
                {"y": _function(exact)},
                inputs,
                free=("w",),
                type=name,
            )
        ]
    dy = rng.standard_normal((N, C)).astype(np.float32)
    return [
        call("forward", {"y": _function(exact)}, inputs, free=("w",)),
        call(
            "backward",
            _gradients(exact, dy.astype(np.float64)),
            {"dy": dy, "ids": inputs["ids"]},
            free=("dw",),
        ),
    ]


CASE = OpCase(
    op="embedding",
    shapes=(
        {"N": 1, "V": 1, "C": 1},
        {"N": 37, "V": 11, "C": 130},
        {"N": 9, "V": 300, "C": 65},
        {"N": 0, "V": 5, "C": 8},
        {"N": 5, "V": 3, "C": 0},
        {"N": 256, "V": 16, "C": 64},
        *({"N": 20, "V": 7, "C": 512, "type": type} for type in SCALES),
    ),
    bench={"gpt2_124m": {"N": 256, "V": 50257, "C": 768}, "bytes": {"N": 2048, "V": 256, "C": 256}},
    calls=_calls,
    tolerance=2e-6,
    reason="forward copies; backward adds up to 40 rows in float32, in the order of the ids",
    inputs=_inputs,
    function=_function,
    gradients=_gradients,
)
