"""Vectors of texts, and losses of them. Losses are recorded from smaller ops.

Sources: van den Oord et al. 2018 (InfoNCE), arXiv:1807.03748; Henderson et al. 2017 (all answers of
a batch as candidates), arXiv:1705.00652; Su 2022 (CoSENT), kexue.fm/archives/8847.
"""

from toynn.graph.tape import Op, Role, Tensor
from toynn.numerics import checks
from toynn.ops import arithmetic, axes
from toynn.ops._shape import Recorder, by_names, flops, matrix, require
from toynn.ops.elementwise import scale
from toynn.ops.linear import linear
from toynn.ops.loss import cross_entropy, linear_cross_entropy


def pooling(s: Recorder, x: Tensor, bounds: Tensor) -> Tensor:
    """Record y (S, C), the mean of each text's rows of x (N, C).

    bounds, an i32 input (S + 1,), has the first row of each text, and the end of the last one.
    """
    N, _ = matrix("pooling", x=x)
    fits = bounds.dtype == "i32" and bounds.role is Role.INPUT and bounds.shape[0] > 1
    require(fits, "pooling", "bounds (S + 1,), an input of i32", x=x, bounds=bounds)
    s.tape.checks.setdefault(bounds, []).append(checks.rising_to(N))
    y = s.tape.record(POOLING, {"x": x, "bounds": bounds}).output
    y.valid = None  # its rows are texts
    return y


def infonce(
    s: Recorder, x: Tensor, candidates: Tensor, labels: Tensor, factor: float = 20.0
) -> Tensor:
    """Record the mean over i of logsumexp_j(factor x_i . c_j) - factor x_i . c_label: (), n rows.

    x (n, C); candidates (m, C); labels, an i32 input (n,), name each row's own candidate. For
    cosines, the rows have length 1. Similarities are computed in chunks of rows, as logits are, and
    all candidates get their gradient. Labels f32 (n, m) are the share of each candidate; then the
    similarities are computed whole.
    """
    if labels.dtype == "f32":
        return cross_entropy(s, linear(s, scale(s, x, factor), candidates), labels)
    return linear_cross_entropy(s, scale(s, x, factor), candidates, labels)


def cosent(
    s: Recorder, x: Tensor, y: Tensor, hidden: Tensor, first: Tensor, factor: float = 20.0
) -> Tensor:
    """Record log(1 + sum over pairs i, j of e^(factor (c_i - c_j))), c_i = x_i . y_i: ().

    x and y (n, C) have rows of length 1 for cosines. hidden (n, n) is 0 for the pairs i, j whose
    score of i is below that of j, and for i = j = 0; -1e30 for others. first, an i32 input (1,), is
    0. So the pair 0, 0, whose difference is 0, is the 1 of the formula, and the sum's logarithm is
    the cross-entropy of the first of n^2 logits.
    """
    n, _ = matrix("cosent", x=x)
    fits = y.shape == x.shape and hidden.shape == (n, n)
    require(fits, "cosent", f"y as x, hidden ({n}, {n})", x=x, y=y, hidden=hidden)
    c = scale(s, axes.sum(s, arithmetic.mul(s, x, y), 1, keepdims=True), factor)
    differences = arithmetic.sub(s, c, axes.reshape(s, c, (1, n)))
    logits = axes.reshape(s, arithmetic.add(s, differences, hidden), (1, n * n))
    return cross_entropy(s, logits, first)


def binary_cross_entropy(
    s: Recorder, logits: Tensor, targets: Tensor, weights: Tensor | None = None
) -> Tensor:
    """Record the mean of (1 - t) z + w log(1 + e^-z) over logits z (N, K) and targets t (N, K): ().

    weights w (N, K) are 1 + (p - 1) t for positive weights p; None: 1. log(1 + e^-z) is computed as
    max(-z, 0) + log(1 + e^-|z|), which overflows for no z.
    """
    fits = targets.shape == logits.shape
    fits = fits and (weights is None or weights.shape == logits.shape)
    require(fits, "binary_cross_entropy", "targets as logits", logits=logits, targets=targets)
    negative = scale(s, logits, -1.0)
    near = arithmetic.exp(s, scale(s, arithmetic.abs(s, logits), -1.0))
    far = arithmetic.log(s, arithmetic.add(s, near, 1.0))
    soft = arithmetic.add(s, arithmetic.relu(s, negative), far)
    soft = soft if weights is None else arithmetic.mul(s, soft, weights)
    plain = arithmetic.mul(s, logits, arithmetic.sub(s, 1.0, targets))
    return axes.mean(s, arithmetic.add(s, plain, soft))


def squared_error(s: Recorder, outputs: Tensor, targets: Tensor) -> Tensor:
    """Record the mean of (y - t)^2 over outputs y and targets t of one shape: ()."""
    require(targets.shape == outputs.shape, "squared_error", "targets as outputs", y=outputs)
    return axes.mean(s, arithmetic.square(s, arithmetic.sub(s, outputs, targets)))


POOLING_BACKWARD = Op("pooling.backward", flops(1, "N", "C"), rows="N dx")
POOLING = Op("pooling.forward", flops(1, "N", "C"), by_names(POOLING_BACKWARD), rows="N x")
