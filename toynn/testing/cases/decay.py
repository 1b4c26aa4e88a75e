"""decay against w log(1 + e^(x + b)) in float64."""

import numpy as np

from toynn.backends.reference import recurrent
from toynn.testing.cases._case import Array, Call, OpCase, call


def _inputs(rng: np.random.Generator, N: int, V: int) -> dict[str, Array]:
    return {
        "x": (4 * rng.standard_normal((N, V))).astype(np.float32),
        "w": -rng.uniform(0.01, 16, V).astype(np.float32),
        "b": rng.standard_normal(V).astype(np.float32),
    }


def _function(inputs: dict[str, Array], **sizes: int) -> Array:
    return recurrent.decay(**inputs)["y"]


def _gradients(inputs: dict[str, Array], dy: Array, **sizes: int) -> dict[str, Array]:
    return recurrent.decay_backward(dy, **inputs)


def _calls(rng: np.random.Generator, **sizes: int) -> list[Call]:
    inputs = _inputs(rng, **sizes)
    exact = {name: x.astype(np.float64) for name, x in inputs.items()}
    dy = rng.standard_normal(inputs["x"].shape).astype(np.float32)
    return [
        call("forward", {"y": _function(exact)}, inputs),
        call(
            "backward",
            _gradients(exact, dy.astype(np.float64)),
            {"dy": dy, **inputs},
        ),
    ]


CASE = OpCase(
    op="decay",
    shapes=({"N": 1, "V": 1}, {"N": 7, "V": 5}, {"N": 70, "V": 33}, {"N": 0, "V": 4}),
    bench={"qwen35_0.8b": {"N": 256, "V": 16}},
    calls=_calls,
    tolerance=1e-6,
    reason="a sum of up to 70 terms in float32; exp and log1p are the C library's",
    inputs=_inputs,
    function=_function,
    gradients=_gradients,
)
