"""Pointwise kernels: arithmetic, functions of one number, roundings, activations, dropout."""

import math

import numpy as np

from toynn.backends.reference.kernel import Array, kernel

_ROOT = math.sqrt(2 / math.pi)


@kernel("elementwise.add")
def add(a, b):
    """Compute y = a + b."""
    return {"y": a + b}


@kernel("elementwise.scale")
def scale(x, alpha):
    """Compute y = alpha x."""
    return {"y": alpha * x}


@kernel("elementwise.accumulate")
def accumulate(x):
    """Compute g = x, or g += x."""
    return {"g": x}


@kernel("elementwise.bias_backward")
def bias_backward(dy):
    """Compute db = sum_n dy[n]."""
    return {"db": dy.sum(axis=0)}


@kernel("pointwise.sub")
def sub(a, b):
    """Compute y = a - b."""
    return {"y": a - b}


@kernel("pointwise.mul")
def mul(a, b):
    """Compute y = a b."""
    return {"y": a * b}


@kernel("pointwise.div")
def div(a, b):
    """Compute y = a / b."""
    return {"y": a / b}


@kernel("pointwise.div_backward")
def div_backward(dy, y, b):
    """Compute db = -dy y / b."""
    return {"db": -dy * y / b}


@kernel("pointwise.affine")
def affine(x, alpha, beta):
    """Compute y = alpha x + beta."""
    return {"y": alpha * x + beta}


@kernel("pointwise.square")
def square(x):
    """Compute y = x^2."""
    return {"y": x**2}


@kernel("pointwise.square_backward")
def square_backward(dy, x):
    """Compute dx = 2 x dy."""
    return {"dx": 2 * x * dy}


@kernel("pointwise.power")
def power(x, p):
    """Compute y = x^p."""
    return {"y": x**p}


@kernel("pointwise.power_backward")
def power_backward(dy, x, p):
    """Compute dx = p x^(p-1) dy."""
    return {"dx": p * x ** (p - 1) * dy}


@kernel("pointwise.exp")
def exp(x):
    """Compute y = e^x."""
    return {"y": np.exp(x)}


@kernel("pointwise.log")
def log(x):
    """Compute y = ln x."""
    return {"y": np.log(x)}


@kernel("pointwise.sqrt")
def sqrt(x):
    """Compute y = x^(1/2)."""
    return {"y": np.sqrt(x)}


@kernel("pointwise.sqrt_backward")
def sqrt_backward(dy, y):
    """Compute dx = dy / (2 y)."""
    return {"dx": dy / (2 * y)}


@kernel("pointwise.tanh")
def tanh(x):
    """Compute y = tanh x."""
    return {"y": np.tanh(x)}


@kernel("pointwise.tanh_backward")
def tanh_backward(dy, y):
    """Compute dx = (1 - y^2) dy."""
    return {"dx": (1 - y**2) * dy}


@kernel("pointwise.abs")
def absolute(x):
    """Compute y = |x|."""
    return {"y": np.abs(x)}


@kernel("pointwise.abs_backward")
def abs_backward(dy, x):
    """Compute dx = sign(x) dy."""
    return {"dx": np.sign(x) * dy}


@kernel("pointwise.relu")
def relu(x):
    """Compute y = max(x, 0)."""
    return {"y": np.maximum(x, 0)}


@kernel("pointwise.relu_backward")
def relu_backward(dy, y):
    """Compute dx = dy where y > 0."""
    return {"dx": np.where(y > 0, dy, 0)}


@kernel("pointwise.masked")
def masked(x, mask, keep):
    """Compute y = x where the mask is 0 (keep 0), or is not 0 (keep 1)."""
    return {"y": np.where((mask != 0) == keep, x, 0)}


@kernel("columns.forward")
def columns(x, C, K):
    """Compute y = C columns of x, from column K on."""
    return {"y": x[:, K : K + C]}


@kernel("columns.backward")
def columns_backward(dy, X, K):
    """Compute dx: dy where y came from, zeros elsewhere."""
    dx = np.zeros((len(dy), X))
    dx[:, K : K + dy.shape[1]] = dy
    return {"dx": dx}


@kernel("columns.place")
def place(y, x, K):
    """Compute y = x in columns from K on; other columns stay."""
    placed = y.copy()
    placed[:, K : K + x.shape[1]] = x
    return {"y": placed}


@kernel("relu2.forward")
def relu2(x):
    """Compute y = max(x, 0)^2."""
    return {"y": np.maximum(x, 0) ** 2}


@kernel("relu2.backward")
def relu2_backward(dy, x):
    """Compute dx = 2 max(x, 0) dy."""
    return {"dx": 2 * np.maximum(x, 0) * dy}


def float16(x: Array) -> Array:
    """Round to float16, in float64."""
    return x.astype(np.float16).astype(np.float64)


def bfloat16(x: Array) -> Array:
    """Round to bfloat16, in float64: eight binary digits, ties to even."""
    significand, exponent = np.frexp(x.astype(np.float64))  # |significand| in [1/2, 1)
    rounded: Array = np.ldexp(np.rint(significand * 2**8), exponent - 8)
    return rounded


@kernel("rounding.forward")
def rounding(x, brain):
    """Compute y = x rounded to bfloat16 (brain) or float16."""
    return {"y": bfloat16(x) if brain else float16(x)}


@kernel("rounding.narrow")
def narrow(x):
    """Compute the 16 bits z of x in bfloat16."""
    bits = bfloat16(x).astype(np.float32).view(np.uint32)
    return {"z": (bits >> 16).astype(np.uint16)}


@kernel("rounding.widen")
def widen(z):
    """Compute y, the number with the 16 bits z in bfloat16."""
    return {"y": (z.astype(np.uint32) << 16).view(np.float32).astype(np.float64)}


def _erf(x: Array) -> Array:
    return np.fromiter(map(math.erf, x.ravel().tolist()), np.float64, x.size).reshape(x.shape)


def gelu_of(x: Array, exact: int) -> Array:
    """Compute x P(x) with the normal distribution P, or its tanh form."""
    t = _erf(x / math.sqrt(2)) if exact else np.tanh(_ROOT * (x + 0.044715 * x**3))
    y: Array = x * (1 + t) / 2
    return y


@kernel("gelu.forward")
def gelu(x, exact):
    """Compute y = gelu(x)."""
    return {"y": gelu_of(x, exact)}


@kernel("gelu.backward")
def gelu_backward(dy, x, exact):
    """Compute dx = dy gelu'(x)."""
    if exact:
        density = np.exp(-x * x / 2) / math.sqrt(2 * math.pi)
        return {"dx": dy * ((1 + _erf(x / math.sqrt(2))) / 2 + x * density)}
    t = np.tanh(_ROOT * (x + 0.044715 * x**3))
    return {"dx": dy * ((1 + t) / 2 + x * (1 - t * t) / 2 * _ROOT * (1 + 0.134145 * x * x))}


@kernel("sigmoid.forward")
def sigmoid(x):
    """Compute y = 1 / (1 + exp(-x))."""
    return {"y": 1 / (1 + np.exp(-x))}


@kernel("sigmoid.backward")
def sigmoid_backward(dy, x):
    """Compute dx = dy s (1 - s), s = 1 / (1 + exp(-x)); 1 - s is the sigmoid of -x."""
    return {"dx": dy / (1 + np.exp(-x)) / (1 + np.exp(x))}


@kernel("silu.forward")
def silu(x):
    """Compute y = x / (1 + exp(-x))."""
    return {"y": x / (1 + np.exp(-x))}


@kernel("silu.backward")
def silu_backward(dy, x):
    """Compute dx = dy s (1 + x (1 - s)), s = 1 / (1 + exp(-x))."""
    s = 1 / (1 + np.exp(-x))
    return {"dx": dy * s * (1 + x * (1 - s))}


@kernel("swiglu.forward")
def swiglu(gate, up, alpha, limit):
    """Compute y = silu(gate) up; with a limit that clamps both, y = g s(alpha g) (u + 1)."""
    if limit:
        g = np.minimum(gate, limit)
        return {"y": g / (1 + np.exp(-alpha * g)) * (np.clip(up, -limit, limit) + 1)}
    return {"y": gate / (1 + np.exp(-gate)) * up}


@kernel("swiglu.backward")
def swiglu_backward(dy, gate, up, alpha, limit):
    """Compute dgate = dy up silu'(gate), dup = dy silu(gate); beyond a limit they are 0."""
    if limit:
        g, u = np.minimum(gate, limit), np.clip(up, -limit, limit)
        s = 1 / (1 + np.exp(-alpha * g))
        dgate = dy * (u + 1) * s * (1 + alpha * g * (1 - s))
        return {"dgate": dgate * (gate <= limit), "dup": dy * g * s * (np.abs(up) <= limit)}
    s = 1 / (1 + np.exp(-gate))
    return {"dgate": dy * up * s * (1 + gate * (1 - s)), "dup": dy * gate * s}


@kernel("swiglu.halves_forward")
def swiglu_halves(x):
    """Compute y = silu(gate) up; gate and up are the halves of each row."""
    return swiglu(*np.split(x, 2, axis=1), alpha=1.0, limit=0.0)


@kernel("swiglu.halves_backward")
def swiglu_halves_backward(dy, x):
    """Compute dx: dgate and dup as the halves of each row."""
    written = swiglu_backward(dy, *np.split(x, 2, axis=1), alpha=1.0, limit=0.0)
    return {"dx": np.hstack([written["dgate"], written["dup"]])}


@kernel("geglu.forward")
def geglu(gate, up, exact):
    """Compute y = gelu(gate) up."""
    return {"y": gelu_of(gate, exact) * up}


@kernel("geglu.backward")
def geglu_backward(dy, gate, up, exact):
    """Compute dgate = dy up gelu'(gate), dup = dy gelu(gate)."""
    return {"dgate": gelu_backward(dy * up, gate, exact)["dx"], "dup": dy * gelu_of(gate, exact)}


@kernel("softcap.forward")
def softcap(x, cap):
    """Compute y = cap tanh(x / cap)."""
    return {"y": cap * np.tanh(x / cap)}


@kernel("softcap.backward")
def softcap_backward(dy, y, cap):
    """Compute dx = dy (1 - (y / cap)^2)."""
    return {"dx": dy * (1 - (y / cap) ** 2)}


def _splitmix(x: Array) -> Array:
    """Mix bits as SplitMix64 does, in uint64 that wrap around."""
    x = x + np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed: Array = x ^ (x >> np.uint64(31))
    return mixed


def dropout_factors(n: int, control: Array, p: float, seed: int, site: int) -> Array:
    """Return the factor of each of ``n`` elements: 0, or 1 / (1 - p).

    A hash of (seed, step, site) is the key. 32 elements share 16 hashes of the key and a number. A
    hash of 64 bits serves two elements: its lower half the first 16 elements, its upper half the
    second 16.
    """
    p = float(np.float32(p))
    step, active = (int(value) for value in control)
    key = np.array([seed], np.uint64)
    for number in (step, site):
        key = _splitmix(key) ^ np.uint64(number)
    i = np.arange(n, dtype=np.uint64)
    word, lane = i // np.uint64(32) * np.uint64(16) + i % np.uint64(16), i % np.uint64(32)
    upper = np.where(lane >= 16, 32, 0).astype(np.uint64)
    bits = (_splitmix(_splitmix(key) + word) >> upper) % np.uint64(2**32)
    kept = (bits >= np.uint64(int(p * 2**32))) | (not active)
    return kept / (1 - p if active else 1)


@kernel("dropout.forward")
def dropout(x, control, seed, site, p):
    """Compute y = x mask / (1 - p); control = (step, active)."""
    return {"y": x * dropout_factors(x.size, control, p, seed, site)}
