"""The gradient of an embedding, shared among threads."""

from itertools import pairwise

import numpy as np

from toynn_puzzles.answer import Answer
from toynn_puzzles.compare import compare, fail
from toynn_puzzles.puzzle import Puzzle

N, V, C = 40, 6, 10


def check(answer: Answer) -> None:
    """Let one thread, then several, add their columns: the bits must be the same."""
    rng = np.random.default_rng(0)
    dy, ids = rng.standard_normal((N, C)).astype(np.float32), rng.integers(0, V, N)
    dw = rng.standard_normal((V, C)).astype(np.float32)
    right, lost, alone = dw.copy(), dw.copy(), np.zeros_like(dw)
    for n, v in enumerate(ids):
        right[v] += dy[n]
        alone[v] += dy[n]
    lost[ids] += dy
    for bounds in ((0, C), (0, 4, C), (0, 1, 7, C)):
        parts = list(pairwise(bounds))
        got = dw.copy()
        for begin, end in parts:
            answer("add", got, dy, ids, begin, end, changes=(0,))
        if not np.array_equal(got, right) and np.allclose(got, right, rtol=1e-5, atol=1e-5):
            fail(
                "dw is right, but for the last bits.",
                "the rows are added in another order, or to another sum first. Add row n to dw "
                "itself, in the order of n.",
            )
        compare(
            "dw",
            got,
            right,
            tolerance=0.0,
            where=f", with {len(parts)} threads" if parts[1:] else "",
            suspects={
                "an id occurs many times, and only its last row is added. `dw[ids] += ...` adds "
                "one of them.": lost,
                "each thread adds all columns: they are counted once for each thread.": dw
                + len(parts) * (right - dw),
                "what was in dw is lost: add to it.": alone,
            },
        )


PUZZLE = Puzzle(
    title="an embedding's gradient, by threads",
    wanted="""\
Add to dw (V, C) the gradient of an embedding, for the columns from begin to end (exclusive): each
thread gets some of the columns. All are float32, and dw is changed in place. The result must have
the same bits however the columns are shared: add the rows of dy (N, C) in the order of n.""",
    formula="dw[v, c] += sum of dy[n, c] over the n with ids[n] = v          begin <= c < end",
    code="""
def add(dw, dy, ids, begin, end):
    # >>>
    for n, v in enumerate(ids):
        dw[v, begin:end] += dy[n, begin:end]
    # <<<
""",
    hints=(
        "Which two threads could ever write the same number of dw?",
        "dw[ids] += dy reads all rows first: of two rows with the same id, one is lost.",
        "for n, v in enumerate(ids): dw[v, begin:end] += dy[n, begin:end]",
    ),
    why=(
        "Why do threads share the columns, and not the rows of dy?",
        "Two rows of dy may have the same id: two threads would add to one row of dw, in an order "
        "that differs from run to run, and so would the last bits.",
    ),
    same="_kernels/rows/embedding.pyx",
    check=check,
)
