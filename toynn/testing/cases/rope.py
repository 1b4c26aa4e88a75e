"""rope against the product of complex numbers: (x_j + i x_k) e^(i angle)."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from toynn.backends.reference import rows
from toynn.testing.cases._case import Array, Call, OpCase, call

BASE = 10000.0
CONTEXT = 8192
MAGNITUDE = 1.25


def _inputs(
    rng: np.random.Generator, N: int, H: int, D: int, R: int | None = None, **_: int
) -> dict[str, Array]:
    """Positions in no order; the last row at the end of a long context."""
    R = D if R is None else R
    positions = rng.integers(0, CONTEXT, N).astype(np.int32)
    positions[-1:] = CONTEXT - 1
    return {
        "x": rng.standard_normal((N, H, D)).astype(np.float32),
        "positions": positions,
        "inverse_frequency": (BASE ** (-np.arange(0, R, 2) / max(R, 1))).astype(np.float32),
    }


def _function(inputs: dict[str, Array], **sizes: int) -> Array:
    return rows.rope(**inputs, **_options(sizes))["y"]


def _gradients(inputs: dict[str, Array], dy: Array, **sizes: int) -> dict[str, Array]:
    table = {name: inputs[name] for name in ("positions", "inverse_frequency")}
    return rows.rope_backward(dy, **table, **_options(sizes))


def _options(sizes: Mapping[str, int]) -> dict[str, Any]:
    """Return the options of the reference: where not all channels are turned, a magnitude too."""
    return {
        "interleaved": bool(sizes["interleaved"]),
        "magnitude": MAGNITUDE if "R" in sizes else 1.0,
        "P": sizes.get("P", sizes["H"]),
    }


def _calls(rng: np.random.Generator, **sizes: int) -> list[Call]:
    inputs = _inputs(rng, **sizes)
    x, positions, inverse_frequency = inputs.values()
    exact = {name: value.astype(np.float64) for name, value in inputs.items()}
    dy = rng.standard_normal(x.shape).astype(np.float32)
    table = {"positions": positions, "inverse_frequency": inverse_frequency}
    options = _options(sizes)
    return [
        call(
            "forward",
            {"y": _function(exact, **sizes)},
            {"x": x, **table},
            **options,
        ),
        call(
            "backward",
            _gradients(exact, dy.astype(np.float64), **sizes),
            {"dy": dy, **table},
            **options,
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
        {"N": 5, "H": 2, "D": 12, "interleaved": 0, "R": 8},
        {"N": 5, "H": 2, "D": 12, "interleaved": 1, "R": 8},
        {"N": 3, "H": 3, "D": 200, "interleaved": 0, "R": 132, "P": 2},
        {"N": 2, "H": 4, "D": 6, "interleaved": 1, "P": 3},
        {"N": 3, "H": 2, "D": 8, "interleaved": 0, "R": 0},
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
