"""Cross-entropy of rows of logits: with integer labels, with dense labels, or chunk by chunk."""

from typing import Any

import numpy as np

from toynn.backends.reference.kernel import Array, Outputs, kernel
from toynn.numerics.checks import IGNORED


def _log_sum_exp(logits: Array) -> Array:
    top = logits.max(axis=1, keepdims=True)
    lse: Array = (top + np.log(np.exp(logits - top).sum(axis=1, keepdims=True)))[:, 0]
    return lse


def _losses(logits: Array, labels: Array) -> Array:
    """Loss of each row; 0 if it is not valid."""
    each = _log_sum_exp(logits) - logits[np.arange(len(labels)), np.maximum(labels, 0)]
    return np.where(labels == IGNORED, 0, each)


def _gradient(logits: Array, labels: Array, of_each: Any) -> Array:
    """``of_each`` (softmax - one-hot); 0 in rows that are not valid."""
    d = np.exp(logits - _log_sum_exp(logits)[:, None])
    d[np.arange(len(labels)), np.maximum(labels, 0)] -= 1
    gradient: Array = d * of_each * (labels != IGNORED)[:, None]
    return gradient


def _counting(labels: Array) -> Array:
    return np.array([np.count_nonzero(labels != IGNORED)], np.float64)


@kernel("cross_entropy.forward")
def forward(logits: Array, labels: Array) -> Outputs:
    """Compute loss = sum_n (lse[n] - logits[n, labels[n]]) / rows, over the labelled rows."""
    rows = _counting(labels)
    loss = _losses(logits, labels).sum() / rows
    return {"loss": loss, "lse": _log_sum_exp(logits), "rows": rows}


@kernel("cross_entropy.backward")
def backward(dloss: Array, logits: Array, labels: Array, rows: Array) -> Outputs:
    """Compute dlogits = dloss / rows (softmax - one-hot)."""
    return {"dlogits": _gradient(logits, labels, dloss / rows)}


@kernel("cross_entropy.forward_dense")
def forward_dense(logits: Array, labels: Array) -> Outputs:
    """Compute loss = sum labels (lse - logits) / rows, over rows whose labels are not all zero."""
    lse = _log_sum_exp(logits)
    rows = np.array([labels.any(axis=1).sum()], np.float64)
    return {"loss": (labels * (lse[:, None] - logits)).sum() / rows, "lse": lse, "rows": rows}


@kernel("cross_entropy.backward_dense")
def backward_dense(dloss: Array, logits: Array, labels: Array, rows: Array) -> Outputs:
    """Compute dlogits = dloss / rows (sum(labels) softmax - labels)."""
    softmax = np.exp(logits - _log_sum_exp(logits)[:, None])
    return {"dlogits": dloss / rows * (labels.sum(axis=1, keepdims=True) * softmax - labels)}


@kernel("valid_rows.forward")
def valid_rows(labels: Array) -> Outputs:
    """Find the labelled rows and their labels; 0 and the label IGNORED follow."""
    rows, picked = np.zeros_like(labels), np.full_like(labels, IGNORED)
    labelled = np.flatnonzero(labels != IGNORED)
    rows[: labelled.size], picked[: labelled.size] = labelled, labels[labelled]
    return {"rows": rows, "picked": picked, "count": np.array([labelled.size])}


@kernel("chunked_cross_entropy.count")
def count(labels: Array) -> Outputs:
    """Compute rows = the number of labelled rows."""
    return {"rows": _counting(labels)}


@kernel("chunked_cross_entropy.forward")
def chunk(logits: Array, labels: Array) -> Outputs:
    """losses[n] = lse[n] - logits[n, labels[n]], or 0."""
    return {"losses": _losses(logits, labels)}


@kernel("chunked_cross_entropy.backward")
def chunk_backward(dloss: Array, logits: Array, labels: Array, rows: Array) -> Outputs:
    """Compute dlogits as ``backward`` does, with rows of all chunks; losses as ``chunk`` does."""
    gradient = _gradient(logits, labels, dloss / rows)
    return {"dlogits": gradient, "losses": _losses(logits, labels)}


@kernel("chunked_cross_entropy.each")
def each(dlosses: Array, logits: Array, labels: Array) -> Outputs:
    """dlogits[n] = dlosses[n] (softmax - one-hot)."""
    return {"dlogits": _gradient(logits, labels, dlosses[:, None])}


@kernel("chunked_cross_entropy.mean")
def mean(losses: Array, rows: Array) -> Outputs:
    """Compute loss = sum(losses) / rows."""
    return {"loss": losses.sum() / rows}
