"""One row at a time: softmax, norms, RoPE, class tokens, magnitudes."""

import numpy as np

from toynn.backends.reference.kernel import Array, kernel


@kernel("softmax.forward")
def softmax(x):
    """Compute y = exp(x) / sum exp(x) for each row."""
    e = np.exp(x - x.max(axis=1, keepdims=True, initial=-np.inf))
    return {"y": e / e.sum(axis=1, keepdims=True)}


@kernel("softmax.backward")
def softmax_backward(dy, y):
    """Compute dx = y (dy - sum y dy)."""
    return {"dx": y * (dy - (dy * y).sum(axis=1, keepdims=True))}


@kernel("layernorm.forward")
def layernorm(x, w, b, eps):
    """Compute y = (x - mean) r w + b, r = 1 / sqrt(var + eps); an empty row counts as zeros."""
    per = max(x.shape[1], 1)
    mean = x.sum(axis=1, keepdims=True) / per
    r = 1 / np.sqrt(((x - mean) ** 2).sum(axis=1, keepdims=True) / per + eps)
    return {"y": (x - mean) * r * w + b, "mean": mean[:, 0], "r": r[:, 0]}


@kernel("layernorm.backward")
def layernorm_backward(dy, x, w, mean, r):
    """Compute dx = r (g - mean(g) - h mean(g h)), with g = w dy and h = (x - mean) r.

    dw = sum dy h, db = sum dy.
    """
    per = max(x.shape[1], 1)
    r = r[:, None]
    h = (x - mean[:, None]) * r
    g = w * dy
    mean_g = g.sum(axis=1, keepdims=True) / per
    mean_gh = (g * h).sum(axis=1, keepdims=True) / per
    return {
        "dx": r * (g - mean_g - h * mean_gh),
        "dw": (dy * h).sum(axis=0),
        "db": dy.sum(axis=0),
    }


@kernel("rmsnorm.forward")
def rmsnorm(x, w, eps):
    """Compute y = x r w, r = 1 / sqrt(mean x^2 + eps); an empty row counts as zeros."""
    r = 1 / np.sqrt((x * x).sum(axis=1) / max(x.shape[1], 1) + eps)
    return {"y": x * r[:, None] * w, "r": r}


@kernel("rmsnorm.backward")
def rmsnorm_backward(dy, x, w, r):
    """Compute dx = r (w dy - x r^2 mean(w dy x)), dw = sum dy x r."""
    r = r[:, None]
    dot = (w * dy * x).sum(axis=1, keepdims=True) / max(x.shape[1], 1)
    return {"dx": r * (w * dy - x * r * r * dot), "dw": (dy * x * r).sum(axis=0)}


@kernel("gatednorm.forward")
def gatednorm(x, z, w, eps):
    """Compute y = h r w of each group, h = x silu(z), r = 1 / sqrt(mean h^2 + eps)."""
    h = (x * z / (1 + np.exp(-z))).reshape(len(x), *w.shape)
    r = 1 / np.sqrt((h * h).mean(axis=2) + eps)
    return {"y": (h * r[:, :, None] * w).reshape(x.shape), "r": r}


@kernel("gatednorm.backward")
def gatednorm_backward(dy, x, z, w, r):
    """Compute the gradients of an RMSNorm, then of h = x silu(z)."""
    s, groups = 1 / (1 + np.exp(-z)), (len(x), *w.shape)
    h, d, r = (x * z * s).reshape(groups), dy.reshape(groups), r[:, :, None]
    dh = r * (w * d - h * r * r * (w * d * h).mean(axis=2, keepdims=True))
    dh = dh.reshape(x.shape)
    dz = dh * x * (s + z * s * (1 - s))
    return {"dx": dh * z * s, "dz": dz, "dw": (d * h * r).sum(axis=0)}


def _rotated(
    x: Array,
    positions: Array,
    inverse_frequency: Array,
    interleaved: int,
    factor: Array,
    heads: int,
) -> Array:
    """Multiply the first pairs of channels of x (N, H, D) by factor (N,) e^(i angle).

    Only the first ``heads`` heads.
    """
    angle = np.outer(positions, inverse_frequency)
    half, y = inverse_frequency.size, x.copy()
    first = slice(0, 2 * half, 2) if interleaved else slice(0, half)
    second = slice(1, 2 * half, 2) if interleaved else slice(half, 2 * half)
    z = (x[..., first] + 1j * x[..., second]) * (factor[:, None] * np.exp(1j * angle))[:, None, :]
    y[:, :heads, first], y[:, :heads, second] = z.real[:, :heads], z.imag[:, :heads]
    return y


@kernel("rope.forward")
def rope(x, positions, inverse_frequency, interleaved, magnitude, P, growth, span):
    """y_j + i y_k = m (x_j + i x_k) e^(i angle), angle = position inverse_frequency.

    Only for the first P heads.
    """
    m = magnitude * (1 + growth * np.log(1 + positions // span))
    return {"y": _rotated(x, positions, inverse_frequency, interleaved, m, P)}


@kernel("rope.backward")
def rope_backward(dy, positions, inverse_frequency, interleaved, magnitude, P, growth, span):
    """Rotate dy back."""
    m = magnitude * (1 + growth * np.log(1 + positions // span))
    return {"dx": _rotated(dy, -positions, inverse_frequency, interleaved, m, P)}


def _shifted(u: Array, k: int, B: int, T: int, first: Array | None) -> Array:
    """Return for each row the row k before it; 0 if that row belongs to another sequence."""
    rows = np.arange(B * T)
    starts = rows // max(T, 1) * T if first is None else first
    seen = rows - k >= starts
    return np.where(seen[:, None], u[np.maximum(rows - k, 0)], 0)


def _gates(x: Array, P: int) -> list[Array]:
    return np.split(x, 3, axis=1) if P == 3 else [x, np.ones_like(x), np.ones_like(x)]


@kernel("shortconv.forward")
def shortconv(x, w, b, B, T, first, P):
    """Compute y = g (b + sum_k w[L-1-k] (i v)[t-k]); i, g, v are the thirds of x, or x, 1, 1."""
    i, g, v = _gates(x, P)
    taps = enumerate(w.T[::-1])
    z = sum(tap * _shifted(i * v, k, B, T, first) for k, tap in taps)
    return {"y": g * (z if b is None else z + b)}


@kernel("shortconv.backward")
def shortconv_backward(dy, x, w, b, B, T, first, P):
    """Compute dw = sum_t dz[t] u[t-k], du (tap k of dz[t] adds to du[t-k]), and dx from du."""
    i, g, v = _gates(x, P)
    z, du, dw = np.zeros_like(g) + (0 if b is None else b), np.zeros_like(g), np.zeros_like(w)
    rows = np.arange(B * T)
    starts = rows // max(T, 1) * T if first is None else first
    for k, tap in enumerate(w.T[::-1]):
        u = _shifted(i * v, k, B, T, first)
        z += tap * u
        dw[:, w.shape[1] - 1 - k] = (dy * g * u).sum(axis=0)
        seen = rows - k >= starts
        du[rows[seen] - k] += tap * (dy * g)[seen]
    dx = np.hstack([du * v, dy * z, du * i]) if P == 3 else du
    return {"dx": dx, "dw": dw, "db": (dy * g).sum(axis=0)}


@kernel("shortconv.cached")
def shortconv_cached(ring, x, w, b, past, T, P):
    """Store u = i v in the ring by position; compute y from the ring."""
    i, g, v = _gates(x, P)
    kept, y = ring.copy(), np.zeros_like(g) + (0 if b is None else b)
    for n, row in enumerate(i * v):
        sequence = kept[n // T]
        position = int(past[n // T]) + n % T
        sequence[position % len(sequence)] = row
        for k, tap in enumerate(w.T[::-1]):
            if k <= position:
                y[n] += tap * sequence[(position - k) % len(sequence)]
    return {"y": g * y, "ring": kept}


@kernel("class_token.forward")
def class_token(x, cls, pos, B):
    """y[b] = (cls, then x[b]) + pos."""
    T, C = pos.shape
    first = np.broadcast_to(cls, (B, 1, C))
    y = np.concatenate([first, x.reshape(B, T - 1, C)], axis=1) + pos
    return {"y": y.reshape(B * T, C)}


@kernel("class_token.backward")
def class_token_backward(dy, B, T):
    """Compute dpos = sum_b dy[b], dcls = sum_b dy[b, 0], and dx = the other rows of dy."""
    C = dy.shape[1]
    dy = dy.reshape(B, T, C)
    dx = dy[:, 1:].reshape(B * (T - 1), C)
    return {"dx": dx, "dcls": dy[:, 0].sum(axis=0), "dpos": dy.sum(axis=0)}


@kernel("dora.norms")
def dora_norms(squares, p, g, b, scale):
    """Compute r = 1 / |W + scale b a| per row, with p = a W^T and g = a a^T; norm 0 gives 0."""
    cross, squared = (b * p.T).sum(axis=1), ((b @ g) * b).sum(axis=1)
    norms = squares + 2 * scale * cross + scale * scale * squared
    return {"r": np.where(norms <= 0, 0, 1 / np.sqrt(norms))}


@kernel("dora.forward")
def dora(x, m, r, bias):
    """Compute y = x m r + bias."""
    return {"y": x * m * r if bias is None else x * m * r + bias}


@kernel("dora.backward")
def dora_backward(dy, x, m, r):
    """Compute dx = dy m r, dm = sum dy x r, with r as a constant."""
    return {"dx": dy * m * r, "dm": (dy * x * r).sum(axis=0)}


@kernel("sums.forward")
def sums(x, alpha):
    """Compute y[a,b] = alpha sum_n x[a,n,b]."""
    return {"y": alpha * x.sum(axis=1)}


@kernel("sums.expand")
def expand(x, N, alpha):
    """Compute y[a,n,b] = alpha x[a,b]."""
    return {"y": alpha * x[:, None].repeat(N, axis=1)}


@kernel("transpose.forward")
def transpose(x):
    """Compute y[a,m,n,b] = x[a,n,m,b]."""
    return {"y": x.swapaxes(1, 2)}


@kernel("pooling.forward")
def pooling(x, bounds):
    """Compute the mean of rows bounds[s] .. bounds[s+1]-1; 0 if there are none."""
    before = np.concatenate([np.zeros((1, x.shape[1])), np.cumsum(x, axis=0)])
    counts = np.maximum(np.diff(bounds), 1)
    return {"y": np.diff(before[bounds], axis=0) / counts[:, None]}


@kernel("pooling.backward")
def pooling_backward(dy, bounds, N):
    """Compute dx[n] = dy[s] / count[s] of the s that holds row n."""
    dx, counts = np.zeros((N, dy.shape[1])), np.diff(bounds)
    dx[bounds[0] : bounds[-1]] = np.repeat(dy / np.maximum(counts, 1)[:, None], counts, axis=0)
    return {"dx": dx}
