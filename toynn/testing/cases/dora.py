"""dora against the norms of W + s B A itself, in float64."""

from typing import Any

import numpy as np

from toynn.backends.reference import rows
from toynn.testing.cases._case import Array, Call, OpCase, call

SCALE = 1.5
WIDTH = 23  # columns of W: the kernel sees products alone


def _weights(rng: np.random.Generator, C: int, R: int) -> tuple[Array, Array, Array]:
    """W (C, K), A (R, K) and B (C, R); where there are several rows, one of W and B is zero."""
    w, a, b = (rng.standard_normal(shape) for shape in ((C, WIDTH), (R, WIDTH), (C, R)))
    w[1:2], b[1:2] = 0, 0
    return w, a, b


def _inputs(rng: np.random.Generator, N: int, C: int, R: int) -> dict[str, Array]:
    w, a, b = _weights(rng, C, R)
    norms = np.linalg.norm(w + SCALE * b @ a, axis=1)
    return {
        "x": rng.standard_normal((N, C)).astype(np.float32),
        "m": rng.standard_normal(C).astype(np.float32),
        "r": np.divide(1, norms, out=np.zeros(C), where=norms > 0).astype(np.float32),
        "bias": rng.standard_normal(C).astype(np.float32),
    }


def _function(inputs: dict[str, Array], **_: Any) -> Array:
    return rows.dora(**inputs)["y"]


def _gradients(inputs: dict[str, Array], dy: Array, **_: Any) -> dict[str, Array]:
    found = rows.dora_backward(dy, inputs["x"], inputs["m"], inputs["r"])
    return {**found, "dbias": dy.sum(axis=0)}


def _calls(rng: np.random.Generator, N: int, C: int, R: int) -> list[Call]:
    given = _inputs(rng, N, C, R)
    exact = {name: value.astype(np.float64) for name, value in given.items()}
    dy = rng.standard_normal((N, C)).astype(np.float32)
    read = {name: given[name] for name in ("x", "m", "r")}
    backward = rows.dora_backward(dy.astype(np.float64), *(exact[name] for name in ("x", "m", "r")))
    return [
        _norms(rng, C, R),
        call("forward", rows.dora(**exact), given),
        call("backward", backward, {"dy": dy, **read}),
    ]


def _norms(rng: np.random.Generator, C: int, R: int) -> Call:
    w, a, b = _weights(rng, C, R)
    norms = np.linalg.norm(w + SCALE * b @ a, axis=1)
    r = np.divide(1, norms, out=np.zeros(C), where=norms > 0)
    given = {"squares": (w * w).sum(axis=1), "p": a @ w.T, "g": a @ a.T, "b": b}
    return call("norms", {"r": r}, given, scale=SCALE)


CASE = OpCase(
    op="dora",
    shapes=(
        {"N": 1, "C": 1, "R": 1},
        {"N": 37, "C": 130, "R": 8},
        {"N": 3, "C": 65, "R": 3},
        {"N": 0, "C": 8, "R": 2},
        {"N": 129, "C": 7, "R": 17},
    ),
    bench={"llama_135m": {"N": 256, "C": 1536, "R": 8}},
    calls=_calls,
    tolerance=1e-6,
    reason="what norms reads is rounded; dm: float32 sums of up to 129 terms, one after the other",
    inputs=_inputs,
    function=_function,
    gradients=_gradients,
)
