"""Preference losses, and the sums of token losses that they need."""

import numpy as np

from toynn.backends.reference.kernel import Array, kernel


def _softplus(x: Array) -> Array:
    return np.logaddexp(0, x)


def _sigmoid(x: Array) -> Array:
    return np.exp(-_softplus(-x))


@kernel("token_sums.forward")
def sums(losses, bounds):
    """Compute sums of losses[bounds[k] .. bounds[k+1]-1]: prompts and completions in turn."""
    before = np.concatenate([[0.0], np.cumsum(losses)])
    return {"sums": np.diff(before[bounds]).reshape(-1, 2)}


@kernel("token_sums.backward")
def sums_backward(dsums, bounds, N):
    """Compute dlosses[n] = dsums of the part that holds row n."""
    d = np.zeros(N)
    d[bounds[0] : bounds[-1]] = np.repeat(dsums.ravel(), np.diff(bounds))
    return {"dlosses": d}


def _margin(sums: Array, reference: Array, count: Array, beta: float) -> Array:
    gain = -sums[: count[0], 1] - reference[: count[0]]
    m: Array = beta * (gain[0::2] - gain[1::2])
    return m


@kernel("dpo.forward")
def dpo(sums, reference, count, beta, smoothing):
    """Compute loss = mean (1 - e) softplus(-m) + e softplus(m)."""
    m = _margin(sums, reference, count, beta)
    each = (1 - smoothing) * _softplus(-m) + smoothing * _softplus(m)
    return {"loss": np.array([each.mean()])}


@kernel("dpo.backward")
def dpo_backward(dloss, sums, reference, count, beta, smoothing):
    """Compute dsums of each chosen completion; a rejected one has the opposite sign."""
    m = _margin(sums, reference, count, beta)
    d = dloss[0] * beta / len(m) * ((1 - smoothing) * _sigmoid(-m) - smoothing * _sigmoid(m))
    out = np.zeros_like(sums)
    out[0 : count[0] : 2, 1], out[1 : count[0] : 2, 1] = d, -d
    return {"dsums": out}


def _averages(sums: Array, bounds: Array, count: Array) -> tuple[Array, Array]:
    """Return mean log p of each completion, and its length."""
    length = np.diff(bounds)[1 : 2 * count[0] : 2]
    return np.minimum(-sums[: count[0], 1] / length, -1e-12), length


def _ratio(a: Array) -> Array:
    odds = a - np.log(-np.expm1(a))
    o: Array = odds[0::2] - odds[1::2]
    return o


@kernel("orpo.forward")
def orpo(sums, bounds, count, beta):
    """Compute loss = nll of the chosen + beta mean softplus(-o)."""
    a, _ = _averages(sums, bounds, count)
    tokens = np.diff(bounds).reshape(-1, 2)[0 : count[0] : 2].sum()
    nll = sums[0 : count[0] : 2].sum() / tokens
    return {"loss": np.array([nll + beta * _softplus(-_ratio(a)).mean()])}


@kernel("orpo.backward")
def orpo_backward(dloss, sums, bounds, count, beta):
    """Compute dsums: from the odds of both completions, and from the nll of the chosen sequence."""
    a, length = _averages(sums, bounds, count)
    o = _ratio(a)
    d = dloss[0] * beta / len(o) * np.repeat(_sigmoid(-o), 2) / (-np.expm1(a) * length)
    d[1::2] *= -1
    out = np.zeros_like(sums)
    out[: count[0], 1] = d
    out[0 : count[0] : 2] += dloss[0] / np.diff(bounds).reshape(-1, 2)[0 : count[0] : 2].sum()
    return {"dsums": out}


def _gain(sums: Array, reference: Array, kl: Array, count: Array, beta: float) -> Array:
    g: Array = beta * (-sums[: count[0], 1] - reference[: count[0]] - kl[0])
    return g


@kernel("kto.forward")
def kto(sums, reference, kl, wanted, count, beta, good, bad):
    """Compute loss = mean of good sigmoid(-g) if wanted, of bad sigmoid(g) if not."""
    g = _gain(sums, reference, kl, count, beta)
    each = np.where(wanted[: count[0]] != 0, good * _sigmoid(-g), bad * _sigmoid(g))
    return {"loss": np.array([each.mean()])}


@kernel("kto.backward")
def kto_backward(dloss, sums, reference, kl, wanted, count, beta, good, bad):
    """Compute dsums of completions; kl gets no gradient."""
    g = _gain(sums, reference, kl, count, beta)
    w = np.where(wanted[: count[0]] != 0, good, -bad)
    out = np.zeros_like(sums)
    out[: count[0], 1] = dloss[0] * beta / len(g) * w * _sigmoid(g) * _sigmoid(-g)
    return {"dsums": out}
