"""A mixture of experts: routing of rows, and the product of each expert with its rows."""

from itertools import pairwise

import numpy as np

from toynn.backends.reference.kernel import Array, kernel


@kernel("routing.forward")
def routing(p, b, f, K, G, L, best, normalized, scale, eps):
    """Compute weights scale f p / (sum p + eps) of the K experts with the largest p + b.

    A group's score is the sum of its ``best`` largest p + b. Only the L of G groups with the
    largest scores are considered. The divisor is 1 unless ``normalized``.
    """
    scores = p if b is None else p + b
    if L < G:
        groups = scores.reshape(len(p), G, -1)
        largest = np.sort(groups, axis=2)[..., -best:].sum(axis=2)
        order = np.argsort(-largest, axis=1, kind="stable")
        stays = np.zeros((len(p), G, 1), bool)
        np.put_along_axis(stays[..., 0], order[:, :L], True, axis=1)
        scores = np.where(stays, groups, -np.inf).reshape(p.shape)
    experts = np.argsort(-scores, axis=1, kind="stable")[:, :K]
    chosen = np.take_along_axis(p, experts, axis=1)
    total = chosen.sum(axis=1, keepdims=True) + eps if normalized else 1
    factors = 1 if f is None else f[experts]
    return {"weights": scale * factors * chosen / total, "experts": experts}


@kernel("routing.backward")
def routing_backward(dweights, p, weights, experts, f, normalized, scale, eps):
    """Compute dp of the chosen: (g - <dweights, weights>) / Z, with Z = eps + the sum of their p.

    g = scale f dweights. Unless ``normalized``, dp is g. df[e] is the sum of scale dweights p / Z
    over the copies of expert e.
    """
    chosen = np.take_along_axis(p, experts, axis=1)
    total = chosen.sum(axis=1, keepdims=True) + eps if normalized else 1
    df = np.zeros(p.shape[1])
    np.add.at(df, experts, scale * dweights * chosen / total)
    gradient = scale * dweights * (1 if f is None else f[experts])
    if normalized:
        common = (dweights * weights).sum(axis=1, keepdims=True)
        gradient = (gradient - common) / total
    dp = np.zeros_like(p)
    np.put_along_axis(dp, experts, gradient, axis=1)
    return {"dp": dp} | ({} if f is None else {"df": df})


@kernel("expert_rows.forward")
def expert_rows(experts, E):
    """Compute where each copy goes in a stable sort by expert, and where each expert begins."""
    flat = experts.reshape(-1)
    slots = np.empty(flat.size, np.int64)
    slots[np.argsort(flat, kind="stable")] = np.arange(flat.size)
    offsets = np.concatenate([[0], np.cumsum(np.bincount(flat, minlength=E))])
    return {"slots": slots.reshape(experts.shape), "offsets": offsets}


@kernel("expert_rows.even")
def even(M, E):
    """Compute offsets[e] = M e."""
    return {"offsets": M * np.arange(E + 1)}


@kernel("dispatch.forward")
def dispatch(x, slots):
    """y[slots[n, j]] = x[n]."""
    y = np.zeros((slots.size, x.shape[1]))
    y[slots] = x[:, None]
    return {"y": y}


@kernel("dispatch.combine")
def combine(x, slots):
    """y[n] = sum_j x[slots[n, j]]."""
    return {"y": x[slots].sum(axis=1)}


@kernel("dispatch.weigh")
def weigh(x, w, slots):
    """y[slots[n, j]] = w[n, j] x[slots[n, j]]."""
    y = np.zeros_like(x)
    y[slots] = w[..., None] * x[slots]
    return {"y": y}


@kernel("dispatch.weigh_backward")
def weigh_backward(dy, x, w, slots):
    """Compute dx = w dy and dw = <dy, x> for each copy."""
    return {**{"dx": weigh(dy, w, slots)["y"]}, "dw": (dy[slots] * x[slots]).sum(axis=2)}


def _groups(offsets: Array) -> list[tuple[int, slice]]:
    """Return the experts that have rows, and their rows."""
    ends = [int(offset) for offset in offsets]
    return [
        (e, slice(first, last)) for e, (first, last) in enumerate(pairwise(ends)) if last > first
    ]


@kernel("experts.forward")
def products(x, w, b, offsets):
    """Compute y = x w[e]^T + b[e] for the rows of each expert."""
    y = np.zeros((len(x), w.shape[1]))
    for e, rows in _groups(offsets):
        y[rows] = x[rows] @ w[e].T + (0 if b is None else b[e])
    return {"y": y}


@kernel("experts.backward_input")
def backward_input(dy, w, offsets):
    """Compute dx = dy w[e]."""
    dx = np.zeros((len(dy), w.shape[2]))
    for e, rows in _groups(offsets):
        dx[rows] = dy[rows] @ w[e]
    return {"dx": dx}


@kernel("experts.backward_weight")
def backward_weight(dy, x, offsets):
    """Compute dw[e] = dy^T x over the rows of each expert."""
    dw = np.zeros((len(offsets) - 1, dy.shape[1], x.shape[1]))
    for e, rows in _groups(offsets):
        dw[e] = dy[rows].T @ x[rows]
    return {"dw": dw}


@kernel("experts.backward_bias")
def backward_bias(dy, offsets):
    """Compute db[e] = sum of dy over the rows of each expert."""
    db = np.zeros((len(offsets) - 1, dy.shape[1]))
    for e, rows in _groups(offsets):
        db[e] = dy[rows].sum(axis=0)
    return {"db": db}
