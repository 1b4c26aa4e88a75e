"""Cross-entropy of rows of logits: integer or dense labels, in chunks, or with a teacher."""

from typing import Any

import numpy as np

from toynn.backends.reference.kernel import Array, kernel
from toynn.numerics.checks import IGNORED

LEAST = 1e-30  # probability of the tokens that a teacher does not name


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
def forward(logits, labels):
    """Compute loss = sum_n (lse[n] - logits[n, labels[n]]) / rows, over the labelled rows."""
    rows = _counting(labels)
    loss = _losses(logits, labels).sum() / rows
    return {"loss": loss, "lse": _log_sum_exp(logits), "rows": rows}


@kernel("cross_entropy.backward")
def backward(dloss, logits, labels, rows):
    """Compute dlogits = dloss / rows (softmax - one-hot)."""
    return {"dlogits": _gradient(logits, labels, dloss / rows)}


@kernel("cross_entropy.forward_dense")
def forward_dense(logits, labels):
    """Compute loss = sum labels (lse - logits) / rows, over rows whose labels are not all zero."""
    lse = _log_sum_exp(logits)
    rows = np.array([labels.any(axis=1).sum()], np.float64)
    return {"loss": (labels * (lse[:, None] - logits)).sum() / rows, "lse": lse, "rows": rows}


@kernel("cross_entropy.backward_dense")
def backward_dense(dloss, logits, labels, rows):
    """Compute dlogits = dloss / rows (sum(labels) softmax - labels)."""
    softmax = np.exp(logits - _log_sum_exp(logits)[:, None])
    return {"dlogits": dloss / rows * (labels.sum(axis=1, keepdims=True) * softmax - labels)}


@kernel("valid_rows.forward")
def valid_rows(labels):
    """Find the labelled rows and their labels; 0 and the label IGNORED follow."""
    rows, picked = np.zeros_like(labels), np.full_like(labels, IGNORED)
    labelled = np.flatnonzero(labels != IGNORED)
    rows[: labelled.size], picked[: labelled.size] = labelled, labels[labelled]
    return {"rows": rows, "picked": picked, "count": np.array([labelled.size])}


@kernel("chunked_cross_entropy.count")
def count(labels):
    """Compute rows = the number of labelled rows."""
    return {"rows": _counting(labels)}


@kernel("chunked_cross_entropy.forward")
def chunk(logits, labels):
    """losses[n] = lse[n] - logits[n, labels[n]], or 0."""
    return {"losses": _losses(logits, labels)}


@kernel("chunked_cross_entropy.backward")
def chunk_backward(dloss, logits, labels, rows):
    """Compute dlogits as ``backward`` does, with rows of all chunks; losses as ``chunk`` does."""
    gradient = _gradient(logits, labels, dloss / rows)
    return {"dlogits": gradient, "losses": _losses(logits, labels)}


@kernel("chunked_cross_entropy.each")
def each(dlosses, logits, labels):
    """dlogits[n] = dlosses[n] (softmax - one-hot)."""
    return {"dlogits": _gradient(logits, labels, dlosses[:, None])}


@kernel("chunked_cross_entropy.mean")
def mean(losses, rows):
    """Compute loss = sum(losses) / rows."""
    return {"loss": losses.sum() / rows}


@kernel("distillation.forward")
def distillation(logits, labels, ids, log_p, log_rest, weight, beta, temperature):
    """Mix cross-entropy with beta KL(p||m) + (1 - beta) KL(q||m), by the weight; or 0."""
    taught = _outcomes(logits / temperature, ids, log_p, log_rest)
    divergence = _divergence(*taught, beta).sum(axis=1) * (labels != IGNORED)
    losses = (1 - weight) * _losses(logits, labels)
    return {"losses": losses + weight * divergence if weight[0] != 0 else losses}


@kernel("distillation.backward")
def distillation_backward(
    dloss, logits, labels, ids, log_p, log_rest, weight, rows, beta, temperature
):
    """Compute dlogits by the slopes of D over q, through the softmax; losses as forward does."""
    read = (logits, labels, ids, log_p, log_rest, weight, beta, temperature)
    gradient = (1 - weight) * _gradient(logits, labels, dloss / rows)
    if weight[0] != 0:
        log_q, log_t = _outcomes(logits / temperature, ids, log_p, log_rest)
        q, p = np.exp(log_q), np.exp(log_t)
        slopes = -p / q if beta == 0 else log_q - log_t + 1
        if 0 < beta < 1:
            slopes = (1 - beta) * (log_q - np.log(beta * p + (1 - beta) * q))
        of_each = np.repeat(slopes[:, -1:], logits.shape[1], axis=1)
        np.put_along_axis(of_each, ids, slopes[:, :-1], axis=1)
        s = np.exp(logits / temperature - _log_sum_exp(logits / temperature)[:, None])
        d = s * (of_each - (s * of_each).sum(axis=1, keepdims=True)) / temperature
        gradient = gradient + weight * dloss / rows * d * (labels != IGNORED)[:, None]
    return {"dlogits": gradient, "losses": distillation(*read)["losses"]}


def _outcomes(logits: Array, ids: Array, log_p: Array, log_rest: Array) -> tuple[Array, Array]:
    """Return the log probabilities of the student and the teacher, (N, K + 1): the rest last."""
    log_s = logits - _log_sum_exp(logits)[:, None]
    rest = np.exp(log_s)
    np.put_along_axis(rest, ids, 0, axis=1)
    q = np.log(np.maximum(rest.sum(axis=1, keepdims=True), LEAST))
    p = np.maximum(log_rest[:, None], np.log(LEAST))
    taken = np.take_along_axis(log_s, ids, axis=1)
    return np.concatenate([taken, q], axis=1), np.concatenate([log_p, p], axis=1)


def _divergence(log_q: Array, log_p: Array, beta: float) -> Array:
    """Return the part of each outcome in beta KL(p||m) + (1 - beta) KL(q||m)."""
    q, p = np.exp(log_q), np.exp(log_p)
    if beta in (0, 1):
        each: Array = q * (log_q - log_p) if beta else p * (log_p - log_q)
        return each
    log_m = np.log(beta * p + (1 - beta) * q)
    mixed: Array = beta * p * (log_p - log_m) + (1 - beta) * q * (log_q - log_m)
    return mixed
