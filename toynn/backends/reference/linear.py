"""Products with a weight matrix, and lookups of its rows."""

import numpy as np

from toynn.backends.reference.kernel import kernel
from toynn.backends.reference.pointwise import gelu_of


@kernel("matmul.forward")
def matmul(x, w, b, activation):
    """Compute pre = x w^T + b, and y = pre or gelu(pre): the tanh form (1) or the exact one (2)."""
    pre = x @ w.T if b is None else x @ w.T + b
    return {"y": gelu_of(pre, activation - 1) if activation else pre, "pre": pre}


@kernel("matmul.backward_input")
def matmul_backward_input(dy, w):
    """Compute dx = dy w."""
    return {"dx": dy @ w}


@kernel("matmul.backward_weight")
def matmul_backward_weight(dy, x):
    """Compute dw = dy^T x."""
    return {"dw": dy.T @ x}


@kernel("embedding.forward")
def embedding(w, ids):
    """y[n] = w[ids[n]]."""
    return {"y": w[ids]}


@kernel("embedding.backward")
def embedding_backward(dy, ids, V):
    """dw[ids[n]] += dy[n]."""
    dw = np.zeros((V, dy.shape[1]))
    np.add.at(dw, ids, dy)
    return {"dw": dw}
