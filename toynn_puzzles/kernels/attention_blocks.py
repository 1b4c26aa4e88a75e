"""Attention's backward pass by blocks: the scores are computed again, and never all stored."""

import tracemalloc

import numpy as np

from toynn_puzzles.answer import Answer
from toynn_puzzles.compare import compare, expected, fail
from toynn_puzzles.puzzle import Puzzle

T, D, BLOCK = 192, 4, 16


def check(answer: Answer) -> None:
    """Compare the gradients of a small case, then the memory of a larger one."""
    case = expected("attention", B=1, T=10, H=1, KV=1, D=D, causal=1)
    q, k, v = (case.inputs[name] for name in "qkv")
    y, lse, _ = _forward(q, k, v)
    p, dp = np.exp(_scores(q, k) - lse[:, None]), case.dy @ v.T
    ds = p * (dp - (case.dy * y).sum(1, keepdims=True)) * D**-0.5
    scale = "the factor 1 / sqrt(D) is missing from ds."
    through = "delta is missing: ds = p (dp - delta) / sqrt(D)."
    got = answer.several("backward", "dq, dk, dv", case.dy, q, k, v, y, lse, 4)
    last = slice(8, 12)
    case.compare(
        {name: got[name] for name in ("dv", "dq", "dk")},
        dv={
            "dv is overwritten by each block of queries; add to it.": np.vstack(
                [p[last, :8].T @ case.dy[last], p[last, 8:].T @ case.dy[last]]
            ),
        },
        dq={
            scale: ds @ k * D**0.5,
            through: p * dp @ k * D**-0.5,
            "dq is overwritten by each block of keys; add to it.": np.vstack(
                [ds[i : i + 4, i : i + 4] @ k[i : i + 4] for i in range(0, 10, 4)]
            ),
        },
        dk={scale: ds.T @ q * D**0.5, through: (p * dp).T @ q * D**-0.5},
    )
    far, near = 60 * q, 60 * k  # scores of thousands: exp of a masked one overflows
    y, lse, p = _forward(far, near, v)
    ds = p * (case.dy @ v.T - (case.dy * y).sum(1, keepdims=True)) * D**-0.5
    got = answer.several("backward", "dq, dk, dv", case.dy, far, near, v, y, lse, 4)
    right = {"dq": ds @ near, "dk": ds.T @ far, "dv": p.T @ case.dy}
    for name, gradient in right.items():
        overflow = "a masked score is large: its exp is inf, and inf times 0 is nan: use np.where."
        suspects = {overflow: np.where(np.isnan(got[name]), np.nan, gradient)}
        compare(name, got[name], gradient, where=", with large scores", suspects=suspects)
    dy, q, k, v = np.random.default_rng(1).standard_normal((4, T, D))
    y, lse, _ = _forward(q, k, v)
    tracemalloc.start()
    answer("backward", dy, q, k, v, y, lse, BLOCK)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    whole = T * T * dy.itemsize
    if peak > whole // 2:
        fail(
            f"{peak // 1024} KB were in use at once, for {T} rows. One (T, T) array takes "
            f"{whole // 1024} KB; half of that is allowed.",
            "scores of all rows are stored: compute those of `block` rows and columns at a time.",
        )


def _scores(q: np.ndarray, k: np.ndarray) -> np.ndarray:
    return np.where(np.tri(len(q), dtype=bool), q @ k.T * D**-0.5, -np.inf)


def _forward(q: np.ndarray, k: np.ndarray, v: np.ndarray) -> tuple[np.ndarray, ...]:
    s = _scores(q, k)
    m = s.max(1, keepdims=True)
    p = np.exp(s - m)
    total = p.sum(1, keepdims=True)
    return p @ v / total, (m + np.log(total))[:, 0], p / total


PUZZLE = Puzzle(
    title="attention by blocks, backward",
    wanted="""\
Return dq, dk and dv of causal attention, all (T, D), from dy, q, k, v, and from what the forward
pass kept: y (T, D) and lse (T,). Work on `block` rows and `block` columns of the scores at a time:
a (T, T) array is too large. T need not be a multiple of block.""",
    formula="""\
p     = exp(q k^T / sqrt(D) - lse)          of a block: 0 where the column is past the row
delta = sum_d dy y                          one number a row
dv += p^T dy       ds = p (dy v^T - delta) / sqrt(D)       dq += ds k       dk += ds^T q""",
    told="The ladder of attention, rung 3",
    code="""
import numpy as np


def backward(dy, q, k, v, y, lse, block):
    T, D = q.shape
    dq, dk, dv = np.zeros_like(q), np.zeros_like(k), np.zeros_like(v)
    delta = (dy * y).sum(axis=1)
    # >>>
    for i in range(0, T, block):
        rows = slice(i, i + block)
        for j in range(0, i + 1, block):
            columns = slice(j, j + block)
            s = q[rows] @ k[columns].T / np.sqrt(D)
            seen = np.arange(T)[columns] <= np.arange(T)[rows][:, None]
            p = np.where(seen, np.exp(s - lse[rows][:, None]), 0)
            dv[columns] += p.T @ dy[rows]
            ds = p * (dy[rows] @ v[columns].T - delta[rows][:, None]) / np.sqrt(D)
            dq[rows] += ds @ k[columns]
            dk[columns] += ds.T @ q[rows]
    # ---
    # your code
    # <<<
    return dq, dk, dv
""",
    hints=(
        "Two loops: over blocks of rows, and over the blocks of columns up to the diagonal. Five "
        "products in the inner one.",
        "Only the block on the diagonal needs a mask: where a column is past its row, p is 0.",
        "A block of keys serves all later blocks of queries: dk[columns] and dv[columns] are sums "
        "over rows, dq[rows] is a sum over columns.",
    ),
    why=(
        "The scores are computed twice, here and in the forward pass. Why is that faster?",
        "Stored scores are T^2 numbers a head, which must be written to memory and read again. "
        "Computing a block again is one product of five, in cache.",
    ),
    same="_kernels/attention/_attention.pxd",
    check=check,
)
