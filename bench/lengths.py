"""The cost of layers that read a sequence, forward and backward, as the sequence grows.

Four kinds have equal heads and channels: attention over all keys, and in a window of 512 rows, the
gated delta rule, and Mamba 2's state space. States are 128 x 64 numbers.
"""

from collections.abc import Callable

import numpy as np
from smallest import smallest

from toynn._kernels import attention, delta, ssd

__all__ = ["LENGTHS", "steps"]

LENGTHS = smallest((1024, 2048, 4096, 8192), (32, 64))
WINDOW, HEADS, D, KEYS = 512, 4, 64, 128


def _attention(T: int, window: int) -> Callable[[], None]:
    rng = np.random.default_rng(0)
    q, k, v, do = (rng.standard_normal((T, HEADS * D), np.float32) for _ in range(4))
    o, dq, dk, dv = (np.empty_like(q) for _ in range(4))
    lse, sums = np.empty((1, HEADS, T), np.float32), np.empty((1, HEADS, T), np.float32)

    def step() -> None:
        attention.forward(o, lse, q, k, v, window=window)
        attention.backward(dq, dk, dv, sums, do, o, lse, q, k, v, window=window)

    return step


def _delta(T: int) -> Callable[[], None]:
    rng = np.random.default_rng(0)
    x = rng.standard_normal((T, HEADS * (2 * KEYS + D)), np.float32)
    g, c = -rng.random((T, HEADS), np.float32), rng.standard_normal((T, HEADS), np.float32)
    y, dy = np.empty((T, HEADS, D), np.float32), rng.standard_normal((T, HEADS, D), np.float32)
    states = np.empty((1, HEADS, T // 32, KEYS, D), np.float32)
    dx, dg, dc = np.empty_like(x), np.empty_like(g), np.empty_like(c)

    def step() -> None:
        delta.forward(y, states, x, g, c)
        delta.backward(dx, dg, dc, dy, x, g, c, states)

    return step


def _ssd(T: int) -> Callable[[], None]:
    rng = np.random.default_rng(0)
    x, dt = (rng.standard_normal((T, n), np.float32) for n in (HEADS * D + 2 * KEYS, HEADS))
    a, bias, skip = -rng.random((HEADS, 1), np.float32), *np.ones((2, HEADS), np.float32)
    skip = skip.reshape(-1, 1)
    y, dy = np.empty((T, HEADS * D), np.float32), rng.standard_normal((T, HEADS * D), np.float32)
    dx, ddt, da, dbias, dskip = (np.empty_like(each) for each in (x, dt, a, bias, skip))

    def step() -> None:
        ssd.forward(y, x, dt, a, bias, skip, G=1)
        ssd.backward(dx, ddt, da, dbias, dskip, dy, x, dt, a, bias, skip, G=1)

    return step


def steps(T: int) -> dict[str, Callable[[], None]]:
    """Return forward and backward of each kind, over a sequence of T rows."""
    return {
        "attention": _attention(T, 0),
        f"window {WINDOW}": _attention(T, WINDOW),
        "delta rule": _delta(T),
        "state space": _ssd(T),
    }
