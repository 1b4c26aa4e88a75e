"""layernorm against y = (x - mean(x)) / sqrt(var(x) + eps) * w + b."""

import numpy as np

from toynn.backends.reference import rows
from toynn.testing.cases._case import Array, Call, OpCase, call

EPS = 1e-5


def _inputs(rng: np.random.Generator, N: int, C: int) -> dict[str, Array]:
    """Rows whose mean is several times their spread, where careless sums lose digits."""
    x = rng.standard_normal((N, C)) + 4 * rng.standard_normal((N, 1))
    return {
        "x": x.astype(np.float32),
        "w": rng.standard_normal(C).astype(np.float32),
        "b": rng.standard_normal(C).astype(np.float32),
    }


def _function(inputs: dict[str, Array], N: int, C: int) -> Array:
    return rows.layernorm(**inputs, eps=EPS)["y"]


def _gradients(inputs: dict[str, Array], dy: Array, N: int, C: int) -> dict[str, Array]:
    saved = rows.layernorm(**inputs, eps=EPS)
    x, w, mean, r = inputs["x"], inputs["w"], saved["mean"], saved["r"]
    return rows.layernorm_backward(dy, x, w, mean, r)


def _calls(rng: np.random.Generator, N: int, C: int) -> list[Call]:
    inputs = _inputs(rng, N, C)
    exact = {name: value.astype(np.float64) for name, value in inputs.items()}
    dy = rng.standard_normal((N, C)).astype(np.float32)
    written = rows.layernorm(**exact, eps=EPS)
    mean, r = written["mean"], written["r"]
    return [
        call(
            "forward",
            written,
            inputs,
            eps=EPS,
        ),
        call(
            "backward",
            _gradients(exact, dy.astype(np.float64), N, C),
            {"dy": dy, "x": inputs["x"], "w": inputs["w"], "mean": mean, "r": r},
        ),
    ]


CASE = OpCase(
    op="layernorm",
    shapes=(
        {"N": 1, "C": 1},
        {"N": 37, "C": 130},
        {"N": 3, "C": 65},
        {"N": 0, "C": 8},
        {"N": 2, "C": 0},
        {"N": 129, "C": 768},
    ),
    bench={"gpt2_124m": {"N": 256, "C": 768}},
    calls=_calls,
    tolerance=2e-6,
    reason="float32 sums of up to 768 terms in 16 partial sums; the mean is not subtracted exactly",
    inputs=_inputs,
    function=_function,
    gradients=_gradients,
)
