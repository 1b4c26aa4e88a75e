"""The principal part of a matrix as an adapter's A and B: PiSSA's initialization.

    W = U S V^T      s B0 A0 = U_r S_r V_r^T:  A0 = sqrt(S_r / s) V_r^T,  B0 = U_r sqrt(S_r / s)

The SVD is exact, or a randomized search of the range of W in some passes over it.
Sources: Meng et al. 2024, PiSSA, arXiv:2404.02948. Halko et al. 2011, arXiv:0909.4061, algorithm
4.4, with as many columns as the rank, as in PEFT.
"""

import numpy as np
from numpy.typing import NDArray

from toynn._kernels import random

__all__ = ["principal"]

Floats = NDArray[np.float32]


def principal(
    w: Floats, rank: int, scale: float, passes: int, seed: int, stream: int
) -> tuple[Floats, Floats]:
    """Return A0 (r, in) and B0 (out, r) of w (out, in); exact if ``passes`` is 0.

    A rank above the smaller side of w is filled up with zeros.
    """
    most = min(rank, *w.shape)
    if passes:
        q = _range(w, most, passes, seed, stream)
        left, values, right = np.linalg.svd(q.T @ w, full_matrices=False)
        left = q @ left
    else:
        left, values, right = np.linalg.svd(w, full_matrices=False)
    roots = np.sqrt(values[:most] / scale)
    a, b = np.zeros((rank, w.shape[1]), np.float32), np.zeros((w.shape[0], rank), np.float32)
    a[:most], b[:, :most] = roots[:, None] * right[:most], left[:, :most] * roots
    return a, b


def _range(w: Floats, columns: int, passes: int, seed: int, stream: int) -> Floats:
    """Return an orthonormal basis (out, columns) of approximately the range of w."""
    drawn = np.empty(w.shape[1] * columns, np.float32)
    random.normal(drawn, seed, stream, 1.0)
    q = np.linalg.qr(w @ drawn.reshape(w.shape[1], columns))[0]
    for _ in range(passes):
        q = np.linalg.qr(w.T @ q)[0]
        q = np.linalg.qr(w @ q)[0]
    return q
