"""Attention over a packed batch: each row sees the prefix of its own example."""

import numpy as np

from toynn.testing.cases import Array
from toynn_puzzles.answer import Answer
from toynn_puzzles.compare import compare
from toynn_puzzles.puzzle import Puzzle

FIRST = np.array([0, 0, 0, 3, 4, 4, 4, 4])
D = 4


def attended(q: Array, k: Array, v: Array, first: Array) -> Array:
    """Attend row t to the rows first[t] ... t."""
    rows = []
    for t in range(len(q)):
        seen = slice(first[t], t + 1)
        s = k[seen] @ q[t] * D**-0.5
        p = np.exp(s - s.max(initial=-np.inf))
        rows.append(p @ v[seen] / p.sum())
    return np.array(rows)


def check(answer: Answer) -> None:
    """Compare y, then again with an example of nan: it must not spread."""
    q, k, v = np.random.default_rng(0).standard_normal((3, len(FIRST), D))
    whole = np.zeros_like(FIRST)
    suspects = {
        "examples see each other: a row sees all rows before it.": attended(q, k, v, whole),
        "the factor 1 / sqrt(D) is missing.": attended(q * D**0.5, k, v, FIRST),
    }
    compare("y", answer("attend", q, k, v, FIRST), attended(q, k, v, FIRST), suspects=suspects)
    ill = [x.copy() for x in (q, k, v)]
    for x in ill:
        x[3] = np.nan  # the whole second example
    right = attended(ill[0], ill[1], ill[2], FIRST)
    got = np.asarray(answer("attend", *ill, FIRST))
    others = FIRST != 3
    compare(
        "y of the other examples",
        got[others],
        right[others],
        where=", when one example is nan",
        suspects={
            "0 times nan is nan: a row of weight 0 still enters the product. Do not multiply by "
            "the rows of other examples at all.": np.full_like(right[others], np.nan),
        },
    )


PUZZLE = Puzzle(
    title="attention over packed examples",
    wanted="""\
Return y (T, D): row t attends to rows first[t] ... t, the prefix of its own example. first[t] is
the row at which the example of row t begins (puzzle 17 makes it). An example must give what it
gives alone: even if another one is nan.""",
    formula="""\
y[t] = softmax(k[first[t] : t + 1] q[t] / sqrt(D)) v[first[t] : t + 1]""",
    told="The ladder of attention, rung 4",
    code="""
import numpy as np


def attend(q, k, v, first):
    y = np.zeros_like(q)
    # >>>
    for t in range(len(q)):
        seen = slice(first[t], t + 1)
        s = k[seen] @ q[t] / np.sqrt(q.shape[1])
        p = np.exp(s - s.max())
        y[t] = p @ v[seen] / p.sum()
    # ---
    # your code
    # <<<
    return y
""",
    hints=(
        "A loop over t is enough; a row sees at least itself.",
        "A mask of -infinity keeps the softmax right, but p @ v multiplies 0 by every v.",
        "seen = slice(first[t], t + 1), then k[seen] and v[seen].",
    ),
    why=(
        "Two examples of 512 tokens in a row of 1024: how much work does `first` save?",
        "Half of it. A row alone costs 1024^2 / 2 scores, two examples 2 (512^2 / 2). And neither "
        "needs padding.",
    ),
    same="_kernels/attention/attention.pyx",
    check=check,
)
