"""AltUp's streams, and Gaussian top-k."""

import numpy as np

from toynn.backends.reference.kernel import kernel


@kernel("altup.predict")
def predict(x, w, N, A, C):
    """Add to each stream the sum of all, weighed."""
    streams = x.reshape(N, A, C)
    return {"y": streams + np.einsum("nij,njc->nic", w.reshape(N, A, A), streams)}


@kernel("altup.predict_backward")
def predict_backward(dy, x, w, N, A, C):
    """Give each stream what each sum took of it."""
    d, streams = dy.reshape(N, A, C), x.reshape(N, A, C)
    dx = d + np.einsum("nij,nic->njc", w.reshape(N, A, A), d)
    return {"dx": dx, "dw": np.einsum("nic,njc->nij", d, streams).reshape(N, A * A)}


@kernel("altup.correct")
def correct(p, a, w, f, N, A, C):
    """Add the error of stream 0 to each stream, weighed, and f to all but that."""
    streams = p.reshape(N, A, C)
    y = streams + (1 + w[:, :, None]) * (a[:, None] - streams[:, :1])
    y[:, 1:] += 0 if f is None else f[:, None]
    return {"y": y}


@kernel("altup.correct_backward")
def correct_backward(dy, p, a, w, N, A, C):
    """Take what the error gets from stream 0 of p."""
    d, error = dy.reshape(N, A, C), a[:, None] - p.reshape(N, A, C)[:, :1]
    da = ((1 + w[:, :, None]) * d).sum(axis=1)
    dp = d.copy()
    dp[:, :1] -= da[:, None]
    return {"dp": dp, "da": da, "dw": (d * error).sum(axis=2), "df": d[:, 1:].sum(axis=1)}


@kernel("altup.rescale")
def rescale(z, x, floor):
    """Compute z sqrt(mean x^2 / max(mean z^2, floor))."""
    q, m = (np.square(rows).mean(axis=1, keepdims=True) for rows in (x, z))
    return {"y": z * np.sqrt(q / np.maximum(m, floor))}


@kernel("altup.rescale_backward")
def rescale_backward(dy, z, x, floor):
    """Take from dz what would only lengthen z; dx is along x."""
    q, m = (np.square(rows).mean(axis=1, keepdims=True) for rows in (x, z))
    g, s = (dy * z).mean(axis=1, keepdims=True), np.sqrt(q / np.maximum(m, floor))
    across = np.where(m > floor, g * s / m, 0)
    return {"dz": s * dy - z * across, "dx": x * np.where(q > 0, g * s / q, 0)}


@kernel("gaussian_topk.forward")
def gaussian_topk(x, z):
    """Compute max(x - mean - z dev, 0); an empty row counts as zeros."""
    per = max(x.shape[1], 1)
    mean = x.sum(axis=1) / per
    dev = np.sqrt(((x - mean[:, None]) ** 2).sum(axis=1) / per)
    return {"y": np.maximum(x - (mean + z * dev)[:, None], 0), "mean": mean, "dev": dev}


@kernel("gaussian_topk.backward")
def gaussian_topk_backward(dy, x, mean, dev, z):
    """Pass dy on above the cutoff; the cutoff's gradient goes to the whole row."""
    d = np.where(x > (mean + z * dev)[:, None], dy, 0)
    total = d.sum(axis=1, keepdims=True) / max(x.shape[1], 1)
    slope = np.where(dev > 0, z / dev, 0)[:, None]
    return {"dx": d - total * (1 + slope * (x - mean[:, None]))}
