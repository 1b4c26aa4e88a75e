"""softmax(scale q k^T) v with the whole T x T matrix."""

import numpy as np

from toynn.backends.reference.kernel import Array, kernel


def split_heads(x: Array, B: int, T: int, D: int) -> Array:
    """Split rows and columns: (B T, heads D) to (B, heads, T, D)."""
    return x.reshape(B, T, x.shape[1] // D, D).transpose(0, 2, 1, 3)


def join_heads(x: Array) -> Array:
    """Undo ``split_heads``."""
    B, H, T, D = x.shape
    return x.transpose(0, 2, 1, 3).reshape(B * T, H * D)


def _shared(x: Array, B: int, T: int, KV: int, D: int, H: int) -> Array:
    """Return k or v as (B, H, T, D): each head repeated for the queries that it serves."""
    return split_heads(x, B, T, D).repeat(H // KV, axis=1)


def _seen(rows: int, keys: int, past: int, window: int) -> Array:
    """Return which keys the rows after ``past`` keys see: each sees earlier keys and its own.

    With a window, it sees only the last ``window`` of them.
    """
    seen: Array = np.tri(rows, keys, past, dtype=bool)
    return seen & ~np.tri(rows, keys, past - window, dtype=bool) if window else seen


def _capped(scores: Array, cap: float) -> Array:
    """Return cap tanh(scores / cap); the scores themselves if cap is 0."""
    return cap * np.tanh(scores / cap) if cap else scores


def _masked(scores: Array, first: Array | None, causal: int, window: int) -> Array:
    """Return scores (B, H, T, T), with -infinity for keys that a row does not see."""
    B, _, T, _ = scores.shape
    if causal or window:
        seen = _seen(T, T, 0, window)
        scores = np.where(seen if causal else seen | seen.T, scores, -np.inf)
    if first is not None:
        segments = first.reshape(B, 1, T)
        alike = segments.transpose(0, 2, 1) == segments
        scores = np.where(alike[:, None], scores, -np.inf)
    return scores


@kernel("attention.forward")
def attention(q, k, v, B, T, H, KV, D, E, causal, scale, first, window, cap, sinks):
    """Compute o = softmax(scale q k^T) v, and lse, the log-sum-exp of each row of scores.

    With sinks, each row has one more score, its head's sink, whose value is 0.
    """
    heads = split_heads(q, B, T, D)
    keys, values = _shared(k, B, T, KV, D, H), _shared(v, B, T, KV, E, H)
    scores = _capped(heads @ keys.transpose(0, 1, 3, 2) * scale, cap)
    scores = _masked(scores, first, causal, window)
    most = scores.max(axis=-1, keepdims=True, initial=-1e300)
    lse = np.log(np.exp(scores - most).sum(axis=-1)) + most[..., 0]
    if sinks is not None:
        lse = np.logaddexp(lse, sinks[:, None])
    return {"o": join_heads(np.exp(scores - lse[..., None]) @ values), "lse": lse}


@kernel("attention.backward")
def attention_backward(do, o, lse, q, k, v, B, T, H, KV, D, E, causal, scale, first, window, cap):
    """Compute dq = scale ds k, dk = scale ds^T q, dv = p^T do, with ds = p (do v^T - delta).

    delta = do o of each row. With a cap, ds is multiplied by the slope of the capped scores.
    """
    heads = split_heads(q, B, T, D)
    keys, values = _shared(k, B, T, KV, D, H), _shared(v, B, T, KV, E, H)
    scores = _capped(heads @ keys.transpose(0, 1, 3, 2) * scale, cap)
    p = np.exp(_masked(scores, first, causal, window) - lse[..., None])
    d_o = split_heads(do, B, T, E)
    delta = (d_o * split_heads(o, B, T, E)).sum(axis=-1)
    dp = d_o @ values.transpose(0, 1, 3, 2)
    ds = p * (dp - delta[..., None]) * scale
    ds *= 1 - (scores / cap) ** 2 if cap else 1

    def served(x: Array) -> Array:
        """Add up the query heads that share a head of k and v."""
        return join_heads(x.reshape(B, KV, H // KV, T, x.shape[-1]).sum(axis=2))

    return {
        "dq": join_heads(ds @ keys),
        "dk": served(ds.transpose(0, 1, 3, 2) @ heads),
        "dv": served(p.transpose(0, 1, 3, 2) @ d_o),
        "delta": delta,
    }


@kernel("attention.backward_sinks")
def attention_backward_sinks(do, o, lse, sinks, B, T):
    """Compute dsinks = - sum p (do o); p is the weight that a row gives to its head's sink."""
    E = do.shape[1] // len(sinks)
    delta = (split_heads(do, B, T, E) * split_heads(o, B, T, E)).sum(axis=-1)
    return {"dsinks": -(np.exp(sinks[:, None] - lse) * delta).sum(axis=(0, 2))}


@kernel("cached_attention.forward")
def cached_attention(kc, vc, q, k, v, past, T, H, KV, D, E, scale, window, cap, sinks):
    """Add k and v to the cache after the past of each sequence; attend to all of the cache.

    Without v, values are the first E columns of keys.
    """
    keys, o = kc.copy(), np.empty((len(q), H * E))
    values = keys[..., :E] if vc is None else vc.copy()
    group = H // KV
    for b, before in enumerate(past):
        new, end = slice(b * T, (b + 1) * T), before + T
        keys[b, :, before:end] = k[new].reshape(T, KV, D).swapaxes(0, 1)
        if v is not None:
            values[b, :, before:end] = v[new].reshape(T, KV, E).swapaxes(0, 1)
        seen = _seen(T, end, int(before), window)
        heads = q[new].reshape(T, H, D)
        for h in range(H):
            scores = _capped(heads[:, h] @ keys[b, h // group, :end].T * scale, cap)
            scores = np.where(seen, scores, -np.inf)
            if sinks is not None:  # the score of one more key, whose value is 0
                scores = np.append(scores, np.full((T, 1), sinks[h]), axis=1)
            p = np.exp(scores - scores.max(axis=1, keepdims=True, initial=-1e300))
            p = (p / p.sum(axis=1, keepdims=True))[:, :end]
            o[new, h * E : (h + 1) * E] = p @ values[b, h // group, :end]
    return {"o": o, "kc": keys} | ({} if vc is None else {"vc": values})
