"""Kernels for latent attention: slice and join heads, and multiply each head by its rows of w."""

import numpy as np

from toynn.backends.reference.kernel import Array, kernel


@kernel("latent.columns")
def columns(x, N, H, W, D, first):
    """Take columns first to first + D - 1 of each head."""
    return {"y": x.reshape(N, H, W)[..., first : first + D]}


@kernel("latent.columns_backward")
def columns_backward(dy, N, H, W, D, first):
    """Put dy in the columns that y came from; the gradient of the others is 0."""
    dx = np.zeros((N, H, W))
    dx[..., first : first + D] = dy.reshape(N, H, D)
    return {"dx": dx}


@kernel("latent.join")
def join(a, b, N, H, G, P, R):
    """Append a head of b to each head of a; H / G successive heads get the same one."""
    shared = b.reshape(N, G, R).repeat(H // max(G, 1), axis=1)
    return {"y": np.concatenate([a.reshape(N, H, P), shared], axis=2)}


@kernel("latent.join_backward")
def join_backward(dy, N, H, G, P, R):
    """Split dy; the gradient of a head of b is the sum over the heads that it was appended to."""
    heads = dy.reshape(N, H, P + R)
    shared = heads[..., P:].reshape(N, G, H // max(G, 1), R).sum(axis=2)
    return {"da": heads[..., :P], "db": shared}


def _own(w: Array, H: int, G: int, W: int, D: int, first: int) -> Array:
    """Return each head's rows of w (G W, C), as (H, D, C)."""
    rows: Array = w.reshape(G, W, w.shape[1])[:, first : first + D].repeat(H // max(G, 1), axis=0)
    return rows


@kernel("latent.absorb")
def absorb(x, w, N, H, G, W, D, C, first):
    """Multiply each head by its rows of w."""
    part = _own(w, H, G, W, D, first)
    return {"y": np.einsum("nhd,hdc->nhc", x.reshape(N, H, D), part)}


@kernel("latent.expand")
def expand(x, w, N, H, G, W, D, C, first):
    """Multiply each head by its rows of w, transposed."""
    part = _own(w, H, G, W, D, first)
    return {"y": np.einsum("nhc,hdc->nhd", x.reshape(N, H, C), part)}
