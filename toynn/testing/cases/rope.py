"""rope against the product of complex numbers: (x_j + i x_k) e^(i angle)."""

import numpy as np

from toynn.backends.reference import rows
from toynn.testing.cases._case import Array, Call, OpCase, call

BASE = 10000.0
CONTEXT = 8192


def _inputs(rng: np.random.Generator, N: int, H: int, D: int, interleaved: int) -> dict[str, Array]:
    """Positions in no order; the last row at the end of a long context."""
    positions = rng.integers(0, CONTEXT, N).astype(np.int32)
    positions[-1:] = CONTEXT - 1
    return {
        "x": rng.standard_normal((N, H, D)).astype(np.float32),
        "positions": positions,
        "inverse_frequency": (BASE ** (-np.arange(0, D, 2) / max(D, 1))).astype(np.float32),
    }


def _function(inputs: dict[str, Array], interleaved: int, **_: int) -> Array:
    return rows.rope(**inputs, interleaved=interleaved)["y"]


def _gradients(inputs: dict[str, Array], dy: Array, interleaved: int, **_: int) -> dict[str, Array]:
    table = {name: inputs[name] for name in ("positions", "inverse_frequency")}
    return rows.rope_backward(dy, **table, interleaved=interleaved)


def _calls(rng: np.random.Generator, **sizes: int) -> list[Call]:
    inputs = _inputs(rng, **sizes)
    x, positions, inverse_frequency = inputs.values()
    exact = {name: value.astype(np.float64) for name, value in inputs.items()}
    dy = rng.standard_normal(x.shape).astype(np.float32)
    table = {"positions": positions, "inverse_frequency": inverse_frequency}
    interleaved = bool(sizes["interleaved"])
    return [
        call(
            "forward",
            {"y": _function(exact, **sizes)},
            {"x": x, **table},
            in_place={"y": "x"},
            interleaved=interleaved,
        ),
        call(
            "backward",
            _gradients(exact, dy.astype(np.float64), **sizes),
            {"dy": dy, **table},
            in_place={"dx": "dy"},
            interleaved=interleaved,
        ),
    ]


CASE = OpCase(
    op="rope",
    shapes=(
        {"N": 1, "H": 1, "D": 2, "interleaved": 0},
        {"N": 9, "H": 3, "D": 10, "interleaved": 0},
        {"N": 9, "H": 3, "D": 10, "interleaved": 1},
        {"N": 5, "H": 2, "D": 128, "interleaved": 0},
        {"N": 5, "H": 2, "D": 130, "interleaved": 0},
        {"N": 5, "H": 2, "D": 130, "interleaved": 1},
        {"N": 0, "H": 2, "D": 8, "interleaved": 0},
        {"N": 3, "H": 2, "D": 0, "interleaved": 0},
    ),
    bench={"llama_135m": {"N": 256, "H": 9, "D": 64, "interleaved": 0}},
    calls=_calls,
    tolerance=2e-7,
    reason="cosine and sine within 2e-7 of angles kept in double, one multiply-add",
    inputs=_inputs,
    function=_function,
    gradients=_gradients,
)
