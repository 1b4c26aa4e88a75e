"""layernorm against y = (x - mean(x)) / sqrt(var(x) + eps) * w + b."""

import numpy as np

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


def _statistics(x: Array, eps: float = EPS) -> tuple[Array, Array]:
    """Mean and 1 / sqrt(variance + eps) of each row, (N, 1); a row of nothing counts as zeros."""
    per = max(x.shape[1], 1)
    mean = x.sum(axis=1, keepdims=True) / per
    variance = ((x - mean) ** 2).sum(axis=1, keepdims=True) / per
    return mean, 1 / np.sqrt(variance + eps)


def _function(inputs: dict[str, Array], N: int, C: int, eps: float = EPS) -> Array:
    mean, r = _statistics(inputs["x"], eps)
    return (inputs["x"] - mean) * r * inputs["w"] + inputs["b"]


def _gradients(inputs: dict[str, Array], dy: Array, N: int, C: int) -> dict[str, Array]:
    x, per = inputs["x"], max(C, 1)
    mean, r = _statistics(x)
    h = (x - mean) * r
    g = inputs["w"] * dy
    mean_g = g.sum(axis=1, keepdims=True) / per
    mean_gh = (g * h).sum(axis=1, keepdims=True) / per
    return {
        "dx": r * (g - mean_g - h * mean_gh),
        "dw": (dy * h).sum(axis=0),
        "db": dy.sum(axis=0),
    }


def _calls(rng: np.random.Generator, N: int, C: int) -> list[Call]:
    inputs = _inputs(rng, N, C)
    exact = {name: value.astype(np.float64) for name, value in inputs.items()}
    dy = rng.standard_normal((N, C)).astype(np.float32)
    mean, r = (value[:, 0] for value in _statistics(exact["x"]))
    return [
        call(
            "forward",
            {"y": _function(exact, N, C), "mean": mean, "r": r},
            inputs,
            flops=7 * N * C,
            eps=EPS,
        ),
        call(
            "backward",
            _gradients(exact, dy.astype(np.float64), N, C),
            {"dy": dy, "x": inputs["x"], "w": inputs["w"], "mean": mean, "r": r},
            accumulates=("dw", "db"),
            flops=19 * N * C,
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
