"""Gated delta rule: states that are updated row by row, and gated heads."""

import numpy as np
from numpy.typing import NDArray

from toynn.backends.reference.kernel import Array, kernel

_EPS = 1e-6


def _sigmoid(x: Array) -> Array:
    """Compute 1 / (1 + e^-x), accurate for small results too."""
    return np.exp(-np.logaddexp(0, -x))


@kernel("decay.forward")
def decay(x, w, b):
    """Compute y = w log(1 + e^(x + b))."""
    return {"y": w * np.logaddexp(0, x + b)}


@kernel("decay.backward")
def decay_backward(dy, x, w, b):
    """Compute dx = dy w sigmoid(x + b), db = sum dx, dw = sum dy log(1 + e^(x + b))."""
    dx = dy * w * _sigmoid(x + b)
    return {"dx": dx, "dw": (dy * np.logaddexp(0, x + b)).sum(axis=0), "db": dx.sum(axis=0)}


def _halves(x: Array) -> tuple[Array, Array]:
    return x[:, :, 0], x[:, :, 1]


@kernel("gated.queries")
def queries(x, part):
    """Compute q: the first or second half of each head of x, by ``part``."""
    return {"q": _halves(x)[part]}


@kernel("gated.queries_backward")
def queries_backward(dq, part):
    """Compute dx: dq where q came from, zeros in the other half."""
    halves = [dq, np.zeros_like(dq)]
    return {"dx": np.stack(halves[::-1] if part else halves, axis=2)}


@kernel("gated.forward")
def gated(o, x):
    """Compute y = o sigmoid(gate); gate is the second half of each head of x."""
    return {"y": o * _sigmoid(_halves(x)[1])}


@kernel("gated.backward")
def gated_backward(dy, o, x):
    """Compute do = dy s, and dx: zeros for q, dy o s (1 - s) for the gates."""
    s = _sigmoid(_halves(x)[1])
    dgate = dy * o * s * (1 - s)
    return {"do": dy * s, "dx": np.stack([np.zeros_like(dgate), dgate], axis=2)}


def _read(K: int, V: int, grouped: int) -> NDArray[np.intp]:
    """Return which head of q and k each head of v reads."""
    return np.arange(V) // (V // K) if grouped else np.arange(V) % K


def _heads(x: Array, K: int, V: int, D: int, E: int, grouped: int) -> tuple[Array, Array, Array]:
    """Return q (N, V, D), k and v of each head, as they are in rows of x."""
    N, each = len(x), _read(K, V, grouped)
    q = x[:, : K * D].reshape(N, K, D)
    k = x[:, K * D : 2 * K * D].reshape(N, K, D)
    return q[:, each], k[:, each], x[:, 2 * K * D :].reshape(N, V, E)


def _unit(x: Array, scale: float = 1.0) -> Array:
    return np.asarray(scale * x / np.sqrt((x * x).sum(axis=-1, keepdims=True) + _EPS))


def _unit_backward(d: Array, x: Array, scale: float = 1.0) -> Array:
    r = 1 / np.sqrt((x * x).sum(axis=-1, keepdims=True) + _EPS)
    return np.asarray(scale * r * (d - x * r * r * (x * d).sum(axis=-1, keepdims=True)))


def _seen(T: int, rows: int, first: Array | None) -> Array:
    """Return whether a row of the same sequence is before each row."""
    starts = np.arange(rows) // max(T, 1) * T if first is None else first
    return np.asarray(starts != np.arange(rows))


@kernel("delta.forward")
def delta(x, g, c, B, T, K, V, D, E, L, first, S, grouped):
    """S <- e^g S, then S <- S + k (b (v - S^T k))^T; y = S^T q."""
    q, k, v = _heads(x, K, V, D, E, grouped)
    q, k, b = _unit(q, D**-0.5), _unit(k), _sigmoid(c)
    seen, y = _seen(T, B * T, first), np.zeros((B * T, V, E))
    states, state = np.zeros((B, V, S, D, E)), np.zeros((V, D, E))
    for n in range(B * T):
        state = state * seen[n]
        if n % T % L == 0:
            states[n // T, :, n % T // L] = state
        state = state * np.exp(g[n])[:, None, None]
        u = b[n][:, None] * (v[n] - np.einsum("vde,vd->ve", state, k[n]))
        state = state + k[n][:, :, None] * u[:, None]
        y[n] = np.einsum("vde,vd->ve", state, q[n])
    return {"y": y, "states": states}


@kernel("delta.backward")
def delta_backward(dy, x, g, c, states, B, T, K, V, D, E, L, first, grouped):
    """Go back row by row; R is the gradient of the state after each row."""
    raw_q, raw_k, v = _heads(x, K, V, D, E, grouped)
    q, k, b = _unit(raw_q, D**-0.5), _unit(raw_k), _sigmoid(c)
    seen, before = _seen(T, B * T, first), np.zeros((B * T, V, D, E))
    forgets = np.exp(g)[:, :, None, None]
    state = np.zeros((V, D, E))
    for n in range(B * T):  # every L-th row from the states that were saved
        state = states[n // T, :, n % T // L] if n % T % L == 0 else state * seen[n]
        before[n] = state * forgets[n]
        u = b[n][:, None] * (v[n] - np.einsum("vde,vd->ve", before[n], k[n]))
        state = before[n] + k[n][:, :, None] * u[:, None]
    dq, dk, dv = np.zeros_like(q), np.zeros_like(k), np.zeros_like(v)
    dg, db, R = np.zeros_like(g), np.zeros_like(c), np.zeros((V, D, E))
    for n in reversed(range(B * T)):
        rest = v[n] - np.einsum("vde,vd->ve", before[n], k[n])
        u = b[n][:, None] * rest
        after = before[n] + k[n][:, :, None] * u[:, None]
        R = R + q[n][:, :, None] * dy[n][:, None]
        du = np.einsum("vde,vd->ve", R, k[n])
        dv[n], db[n] = b[n][:, None] * du, (du * rest).sum(axis=1)
        dq[n] = np.einsum("vde,ve->vd", after, dy[n])
        dk[n] = np.einsum("vde,ve->vd", R, u) - np.einsum("vde,ve->vd", before[n], dv[n])
        R = R - k[n][:, :, None] * dv[n][:, None]
        dg[n] = (R * before[n]).sum(axis=(1, 2))
        R = R * forgets[n] * seen[n]
    dx, each = np.zeros_like(x), _read(K, V, grouped)
    for h in range(V):
        columns = slice(each[h] * D, (each[h] + 1) * D)
        dx[:, : K * D][:, columns] += _unit_backward(dq[:, h], raw_q[:, h], D**-0.5)
        dx[:, K * D : 2 * K * D][:, columns] += _unit_backward(dk[:, h], raw_k[:, h])
    dx[:, 2 * K * D :] = dv.reshape(B * T, V * E)
    return {"dx": dx, "dg": dg, "dc": db * b * (1 - b)}


@kernel("delta.cached")
def delta_cached(state, x, g, c, past, count, T, K, V, D, E, grouped):
    """Go on from the state of each sequence, over its ``count`` rows."""
    state, y = state.copy(), np.zeros((len(x), V, E))
    for i in range(len(state)):
        rows = slice(i * T, i * T + int(count[i]))
        q, k, v = _heads(x[rows], K, V, D, E, grouped)
        q, k, b, forgets = _unit(q, D**-0.5), _unit(k), _sigmoid(c[rows]), np.exp(g[rows])
        now = state[i] if past[i] else np.zeros((V, D, E))
        for n in range(len(v)):
            now = now * forgets[n][:, None, None]
            u = b[n][:, None] * (v[n] - np.einsum("vde,vd->ve", now, k[n]))
            now = now + k[n][:, :, None] * u[:, None]
            y[i * T + n] = np.einsum("vde,vd->ve", now, q[n])
        state[i] = now
    return {"y": y, "state": state}
