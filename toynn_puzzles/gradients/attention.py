"""Attention of one head, backward: two products, a softmax and a mask."""

import numpy as np

from toynn_puzzles.answer import Answer
from toynn_puzzles.compare import expected
from toynn_puzzles.puzzle import Puzzle


def check(answer: Answer) -> None:
    """Compare dq, dk and dv of causal attention over five rows."""
    T, D = 5, 4
    case = expected("attention", B=1, T=T, H=1, KV=1, D=D, causal=1)
    q, k, v, dy = (*(case.inputs[name] for name in "qkv"), case.dy)
    scale = D**-0.5
    p, open_p = (_softmax(q @ k.T * scale, causal) for causal in (True, False))
    dp = dy @ v.T
    ds = p * (dp - (p * dp).sum(1, keepdims=True))
    open_ds = open_p * (dp - (open_p * dp).sum(1, keepdims=True))
    got = answer.several("backward", "dq, dk, dv", dy, q, k, v)
    forgotten = "the mask is missing: row t sees rows 0 ... t only."
    unscaled = "the factor 1 / sqrt(D) is missing."
    through = "the gradient of the softmax is missing its sum over the row."
    flat = "the sum over a row has shape (T,), and is taken from columns: keepdims=True."
    flat_ds = p * (dp - (p * dp).sum(1)) * scale
    case.compare(
        {name: got[name] for name in ("dv", "dq", "dk")},
        dq={
            forgotten: open_ds @ k * scale,
            unscaled: ds @ k,
            through: p * dp @ k * scale,
            flat: flat_ds @ k,
            "the softmax is left out: dp is taken for the gradient of the scores.": dp @ k * scale,
        },
        dk={
            forgotten: open_ds.T @ q * scale,
            unscaled: ds.T @ q,
            through: (p * dp).T @ q * scale,
            "the scores' gradient must be transposed: row i of dk sums over queries.": ds
            @ q
            * scale,
        },
        dv={
            forgotten: open_p.T @ dy,
            "p must be transposed: row i of dv sums over the queries that see row i.": p @ dy,
        },
    )


def _softmax(scores: np.ndarray, causal: bool) -> np.ndarray:
    scores = np.where(np.tri(len(scores), dtype=bool), scores, -np.inf) if causal else scores
    p = np.exp(scores - scores.max(1, keepdims=True))
    return np.asarray(p / p.sum(1, keepdims=True))


PUZZLE = Puzzle(
    title="causal attention of one head, backward",
    wanted="""\
Return dq, dk and dv from dy, q, k and v, all of them (T, D).
Row t attends to rows 0 ... t, and to no later row. The forward pass is given.""",
    formula="""\
s = q k^T / sqrt(D)          (T, T), -infinity above the diagonal
p = softmax of each row of s
y = p v""",
    told="The ladder of attention, rung 1",
    code="""
import numpy as np


def forward(q, k, v):
    s = q @ k.T / np.sqrt(q.shape[1])
    s = np.where(np.tri(len(q), dtype=bool), s, -np.inf)
    p = np.exp(s - s.max(axis=1, keepdims=True))
    p /= p.sum(axis=1, keepdims=True)
    return p @ v, p


def backward(dy, q, k, v):
    y, p = forward(q, k, v)
    # >>>
    scale = 1 / np.sqrt(q.shape[1])
    dv = p.T @ dy
    dp = dy @ v.T
    ds = p * (dp - (p * dp).sum(axis=1, keepdims=True)) * scale
    dq = ds @ k
    dk = ds.T @ q
    # <<<
    return dq, dk, dv
""",
    hints=(
        "Go backward line by line: y = p v, then the softmax (puzzle 2), then s = q k^T / sqrt(D). "
        "Each product has two gradients (puzzle 1).",
        "dv = p^T dy and dp = dy v^T. The softmax gives ds from dp and p. Where p is 0, ds is 0: "
        "the mask needs no care.",
        "ds = p (dp - sum over the row of p dp) / sqrt(D), dq = ds k, dk = ds^T q.",
    ),
    why=(
        "Why does the backward pass need no mask?",
        "Where a score is masked, p is 0, and dp is multiplied by p. dv too is a sum of p times "
        "dy.",
    ),
    same="_kernels/attention/_attention.pxd",
    check=check,
)
