"""softmax against exp(x) / sum(exp(x)) of each row."""

import numpy as np

from toynn.backends.reference import rows
from toynn.testing.cases._case import Array, Call, OpCase, call


def _inputs(rng: np.random.Generator, N: int, C: int) -> dict[str, Array]:
    """Rows far above and below 0, where exp without the maximum would leave float32; masks."""
    x = 3 * rng.standard_normal((N, C)) + 100 * rng.standard_normal((N, 1))
    x[::3, 1::5] = -np.inf
    return {"x": x.astype(np.float32)}


def _function(inputs: dict[str, Array], N: int, C: int) -> Array:
    return rows.softmax(**inputs)["y"]


def _gradients(inputs: dict[str, Array], dy: Array, N: int, C: int) -> dict[str, Array]:
    return rows.softmax_backward(dy, _function(inputs, N, C))


def _calls(rng: np.random.Generator, N: int, C: int) -> list[Call]:
    inputs = _inputs(rng, N, C)
    exact = {"x": inputs["x"].astype(np.float64)}
    y = _function(exact, N, C)
    dy = rng.standard_normal((N, C)).astype(np.float32)
    return [
        call("forward", {"y": y}, inputs),
        call(
            "backward",
            _gradients(exact, dy.astype(np.float64), N, C),
            {"dy": dy, "y": y},
        ),
    ]


CASE = OpCase(
    op="softmax",
    shapes=(
        {"N": 1, "C": 1},
        {"N": 37, "C": 130},
        {"N": 3, "C": 17},
        {"N": 0, "C": 8},
        {"N": 2, "C": 0},
        {"N": 5, "C": 1025},
    ),
    bench={"scores_1024": {"N": 1024, "C": 1024}},
    calls=_calls,
    tolerance=6e-7,
    reason="exp within 2 units in the last place; y dy, up to four times dx, is rounded before "
    "dy - sum(y dy) cancels",
    inputs=_inputs,
    function=_function,
    gradients=_gradients,
)
