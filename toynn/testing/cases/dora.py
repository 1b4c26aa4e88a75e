"""dora against the norms of W + s B A itself, in float64."""

from typing import Any

import numpy as np

from toynn.testing.cases._case import (
    Array,
    Call,
    OpCase,
    call,
    derived,
    normal,
    reference,
    shapes_of,
)

SCALE = 1.5
WIDTH = 23  # columns of W; the kernel sees only products of W


def _weights(rng: np.random.Generator, C: int, R: int) -> tuple[Array, ...]:
    """Return W (C, K), A (R, K), B (C, R), and 1 / norms of the rows of W + s B A.

    Row 1 of W and B, if there is one, is zero.
    """
    w, a, b = (rng.standard_normal(shape) for shape in ((C, WIDTH), (R, WIDTH), (C, R)))
    w[1:2], b[1:2] = 0, 0
    norms = np.linalg.norm(w + SCALE * b @ a, axis=1)
    return w, a, b, np.divide(1, norms, out=np.zeros(C), where=norms > 0)


def _inputs(rng: np.random.Generator, N: int, C: int, R: int) -> dict[str, Array]:
    *_, r = _weights(rng, C, R)
    vectors = {"m": normal(rng, C), "r": r.astype(np.float32), "bias": normal(rng, C)}
    return {"x": normal(rng, N, C), **vectors}


def _function(arrays: dict[str, Array], **_: Any) -> Array:
    return reference("dora.forward", arrays, {})["y"]


def _gradients(arrays: dict[str, Array], dy: Array, **_: Any) -> dict[str, Array]:
    gradients = reference("dora.backward", {**arrays, "dy": dy}, {})
    return {**gradients, "dbias": dy.sum(axis=0)}


def _calls(rng: np.random.Generator, N: int, C: int, R: int) -> list[Call]:
    arrays = _inputs(rng, N, C, R)
    w, a, b, r = _weights(rng, C, R)
    read = {"squares": (w * w).sum(axis=1), "p": a @ w.T, "g": a @ a.T, "b": b}
    return [
        call("norms", {"r": r}, read, scale=SCALE),
        derived("dora.forward", arrays),
        derived("dora.backward", {**arrays, "dy": normal(rng, N, C)}),
    ]


CASE = OpCase(
    op="dora",
    inputs=_inputs,
    function=_function,
    gradients=_gradients,
    calls=_calls,
    shapes=shapes_of("N C R", "1 1 1, 37 130 8, 3 65 3, 0 8 2, 129 7 17"),
    bench={"llama_135m": {"N": 256, "C": 1536, "R": 8}},
    tolerance=1e-6,
    reason="what norms reads is rounded; dm: float32 sums of up to 129 terms, one after the other",
)
