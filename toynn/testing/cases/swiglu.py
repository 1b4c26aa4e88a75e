"""swiglu against gate / (1 + exp(-gate)) * up."""

import numpy as np

from toynn.backends.reference import pointwise
from toynn.testing.cases._case import Array, Call, OpCase, call


def _inputs(rng: np.random.Generator, n: int) -> dict[str, Array]:
    gate, up = rng.standard_normal((2, n)).astype(np.float32)
    gate[::4] *= 16
    return {"gate": gate, "up": up}


def _function(inputs: dict[str, Array], n: int) -> Array:
    return pointwise.swiglu(**inputs)["y"]


def _gradients(inputs: dict[str, Array], dy: Array, n: int) -> dict[str, Array]:
    return pointwise.swiglu_backward(dy, **inputs)


def _calls(rng: np.random.Generator, n: int) -> list[Call]:
    inputs = _inputs(rng, n)
    exact = {name: value.astype(np.float64) for name, value in inputs.items()}
    dy = rng.standard_normal(n).astype(np.float32)
    return [
        call("forward", {"y": _function(exact, n)}, inputs, in_place={"y": "gate"}),
        call(
            "backward",
            _gradients(exact, dy.astype(np.float64), n),
            {"dy": dy, **inputs},
            in_place={"dgate": "gate", "dup": "up"},
        ),
    ]


CASE = OpCase(
    op="swiglu",
    shapes=({"n": 1}, {"n": 37}, {"n": 0}, {"n": 4096}, {"n": 4097}),
    bench={"llama_135m": {"n": 256 * 1536}},
    calls=_calls,
    tolerance=2e-7,
    reason="a few roundings; exp within 2 units in the last place",
    inputs=_inputs,
    function=_function,
    gradients=_gradients,
)
