"""swiglu against gate / (1 + exp(-gate)) * up."""

import numpy as np

from toynn.backends.reference import pointwise
from toynn.testing.cases._case import Array, Call, OpCase, call


def _inputs(rng: np.random.Generator, N: int, F: int) -> dict[str, Array]:
    gate, up = rng.standard_normal((2, N * F)).astype(np.float32)
    gate[::4] *= 16
    return {"gate": gate, "up": up}


def _function(inputs: dict[str, Array], **_: int) -> Array:
    return pointwise.swiglu(**inputs)["y"]


def _gradients(inputs: dict[str, Array], dy: Array, **_: int) -> dict[str, Array]:
    return pointwise.swiglu_backward(dy, **inputs)


def _calls(rng: np.random.Generator, N: int, F: int) -> list[Call]:
    inputs = _inputs(rng, N, F)
    exact = {name: value.astype(np.float64) for name, value in inputs.items()}
    dy = rng.standard_normal(N * F).astype(np.float32)
    y, sizes = _function(exact), {"n": N * F}
    gradients = _gradients(exact, dy.astype(np.float64))
    x = np.hstack([array.reshape(N, F) for array in inputs.values()])
    dx = np.hstack([array.reshape(N, F) for array in gradients.values()])
    rows = dy.reshape(N, F)
    return [
        call("forward", {"y": y}, inputs, in_place={"y": "gate"}, sizes=sizes),
        call(
            "backward",
            gradients,
            {"dy": dy, **inputs},
            in_place={"dgate": "gate", "dup": "up"},
            sizes=sizes,
        ),
        call("halves_forward", {"y": y.reshape(N, F)}, {"x": x}),
        call("halves_backward", {"dx": dx}, {"dy": rows, "x": x}, in_place={"dx": "x"}),
    ]


CASE = OpCase(
    op="swiglu",
    shapes=(
        {"N": 1, "F": 1},
        {"N": 1, "F": 37},
        {"N": 0, "F": 8},
        {"N": 3, "F": 0},
        {"N": 1, "F": 4096},
        {"N": 17, "F": 241},
    ),
    bench={"llama_135m": {"N": 256, "F": 1536}},
    calls=_calls,
    tolerance=2e-7,
    reason="a few roundings; exp within 2 units in the last place",
    inputs=_inputs,
    function=_function,
    gradients=_gradients,
)
