"""A selective state space, row by row: the recurrence that the kernel computes in chunks."""

import numpy as np

from toynn.backends.reference.kernel import Array, kernel


def _parts(x: Array, V: int, E: int, G: int, D: int) -> tuple[Array, Array, Array]:
    """Return x (N, V, E), and b and c (N, V, D) of each head, from rows of x."""
    N, each = len(x), np.arange(V) * G // V
    of_groups = x[:, V * E :].reshape(N, 2, G, D)
    return x[:, : V * E].reshape(N, V, E), of_groups[:, 0, each], of_groups[:, 1, each]


def _seen(B: int, T: int, first: Array | None) -> Array:
    """Return whether a row of the same sequence is before each row."""
    starts = np.repeat(np.arange(B) * T, T) if first is None else first
    return np.asarray(starts != np.arange(B * T))


def _next(state: Array, kept: Array, b: Array, u: Array) -> Array:
    """Return kept S + b u^T for each head."""
    return np.asarray(kept[:, None, None] * state + b[:, :, None] * u[:, None])


@kernel("ssd.forward")
def ssd(x, dt, a, bias, skip, first, B, T, V, E, G, D):
    """S <- e^(a p) S + b (p x)^T; y = S^T c + s x."""
    (u, b, c), p = _parts(x, V, E, G, D), np.logaddexp(0, dt + bias)
    kept = np.exp(p * a[:, 0]) * _seen(B, T, first)[:, None]
    y, state = np.zeros((B * T, V, E)), np.zeros((V, D, E))
    for n in range(B * T):
        state = _next(state, kept[n], b[n], p[n][:, None] * u[n])
        y[n] = np.einsum("vde,vd->ve", state, c[n]) + skip * u[n]
    return {"y": y.reshape(B * T, V * E)}


@kernel("ssd.backward")
def ssd_backward(dy, x, dt, a, bias, skip, first, B, T, V, E, G, D):
    """Go back row by row; R is the gradient of the state after each row."""
    (u, b, c), p = _parts(x, V, E, G, D), np.logaddexp(0, dt + bias)
    kept = np.exp(p * a[:, 0]) * _seen(B, T, first)[:, None]
    dy, states, state = dy.reshape(B * T, V, E), [], np.zeros((V, D, E))
    for n in range(B * T):
        states.append(state)
        state = _next(state, kept[n], b[n], p[n][:, None] * u[n])
    du, db, dc = np.zeros_like(u), np.zeros_like(b), np.zeros_like(c)
    dp, g, R = np.zeros_like(p), np.zeros_like(p), np.zeros((V, D, E))
    for n in reversed(range(B * T)):
        after = _next(states[n], kept[n], b[n], p[n][:, None] * u[n])
        dc[n] = np.einsum("vde,ve->vd", after, dy[n])
        R = R + c[n][:, :, None] * dy[n][:, None]
        db[n] = np.einsum("vde,ve->vd", R, p[n][:, None] * u[n])
        written = np.einsum("vde,vd->ve", R, b[n])
        du[n] = p[n][:, None] * written + skip * dy[n]
        g[n] = kept[n] * (R * states[n]).sum(axis=(1, 2))
        dp[n] = (written * u[n]).sum(axis=1) + a[:, 0] * g[n]
        R = kept[n][:, None, None] * R
    of_groups = np.stack([db, dc], axis=1).reshape(B * T, 2, G, V // G, D).sum(axis=3)
    ddt = dp * np.exp(-np.logaddexp(0, -(dt + bias)))
    return {
        "dx": np.concatenate(
            [du.reshape(B * T, V * E), of_groups.reshape(B * T, 2 * G * D)], axis=1
        ),
        "ddt": ddt,
        "da": (p * g).sum(axis=0)[:, None],
        "dbias": ddt.sum(axis=0),
        "dskip": (dy * u).sum(axis=(0, 2))[:, None],
    }


@kernel("ssd.cached")
def ssd_cached(state, x, dt, a, bias, skip, past, count, T, V, E, G, D):
    """Go on from the state of each sequence, over its ``count`` rows."""
    state, y = state.copy(), np.zeros((len(x), V, E))
    (u, b, c), p = _parts(x, V, E, G, D), np.logaddexp(0, dt + bias)
    kept = np.exp(p * a[:, 0])
    for i in range(len(state)):
        now = state[i] if past[i] else np.zeros((V, D, E))
        for n in range(i * T, i * T + int(count[i])):
            now = _next(now, kept[n], b[n], p[n][:, None] * u[n])
            y[n] = np.einsum("vde,vd->ve", now, c[n]) + skip * u[n]
        state[i] = now
    return {"y": y.reshape(len(x), V * E), "state": state}
