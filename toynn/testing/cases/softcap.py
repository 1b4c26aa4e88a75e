"""softcap against cap tanh(x / cap)."""

import numpy as np

from toynn.backends.reference import pointwise
from toynn.testing.cases._case import Array, Call, OpCase, call

CAP = 3.0


def _inputs(rng: np.random.Generator, n: int) -> dict[str, Array]:
    """Values around 0, some far below the cap and, every fourth one, far above it."""
    x = rng.standard_normal(n).astype(np.float32)
    x[::4] *= 16
    x[1::4] *= 1e-3
    return {"x": x}


def _function(inputs: dict[str, Array], n: int) -> Array:
    return pointwise.softcap(inputs["x"], CAP)["y"]


def _gradients(inputs: dict[str, Array], dy: Array, n: int) -> dict[str, Array]:
    return pointwise.softcap_backward(dy, _function(inputs, n), CAP)


def _calls(rng: np.random.Generator, n: int) -> list[Call]:
    inputs = _inputs(rng, n)
    y = _function({"x": inputs["x"].astype(np.float64)}, n)
    dy = rng.standard_normal(n).astype(np.float32)
    kept = y.astype(np.float32)
    written = pointwise.softcap_backward(dy.astype(np.float64), kept.astype(np.float64), CAP)
    return [
        call("forward", {"y": y}, inputs, cap=CAP),
        call("backward", written, {"dy": dy, "y": kept}, cap=CAP),
    ]


CASE = OpCase(
    op="softcap",
    shapes=({"n": 1}, {"n": 37}, {"n": 0}, {"n": 4096}, {"n": 4097}),
    bench={"gemma2_logits": {"n": 32 * 256000}},
    calls=_calls,
    tolerance=3e-7,
    reason="tanh within 2 units in the last place, a few roundings",
    inputs=_inputs,
    function=_function,
    gradients=_gradients,
)
