"""Softmax over blocks that are seen once: a running maximum and sum."""

from collections.abc import Iterator

import numpy as np

from toynn.testing.cases import Array
from toynn_puzzles.answer import Answer
from toynn_puzzles.compare import compare
from toynn_puzzles.puzzle import Puzzle

D = 3


def check(answer: Answer) -> None:
    """Compare o and lse with those of all scores at once: small, large, and masked ones."""
    rng = np.random.default_rng(0)
    for shift, what in ((0.0, "small scores"), (900.0, "scores near 900"), (0.0, "masked scores")):
        s, v = rng.standard_normal(12) + shift, rng.standard_normal((12, D))
        if what == "masked scores":
            s[:4] = -np.inf  # the whole first block
        cuts = [slice(0, 4), slice(4, 9), slice(9, 12)]

        def blocks(s: Array = s, v: Array = v, cuts: list[slice] = cuts) -> Iterator[object]:
            yield from ((s[cut].copy(), v[cut].copy()) for cut in cuts)

        m = s.max()
        p = np.exp(s - m)
        got = answer.several("attend", "o, lse", blocks(), D)
        tops = np.maximum.accumulate([s[cut].max() for cut in cuts])
        tops[np.isinf(tops)] = 0
        stale = np.concatenate([np.exp(s[c] - top) for c, top in zip(cuts, tops, strict=True)])
        where = f", with {what}"
        skipped = "a block of only -infinity: -inf - -inf is nan. Skip it."
        nan = {skipped: np.full(D, np.nan)} if what == "masked scores" else {}
        compare(
            "o",
            got["o"],
            p @ v / p.sum(),
            where=where,
            suspects=nan
            | {
                "when the maximum grows, what is summed so far must shrink by exp(old - new).": (
                    stale @ v / stale.sum()
                ),
                "l shrinks when the maximum grows, and o does not.": stale @ v / p.sum(),
                "o shrinks when the maximum grows, and l does not.": p @ v / stale.sum(),
                "o is not divided by the sum l at the end.": p @ v,
                "only the last block is there: o is overwritten, not added to.": (
                    p[cuts[-1]] @ v[cuts[-1]] / p.sum()
                ),
            },
        )
        compare(
            "lse",
            got["lse"],
            m + np.log(p.sum()),
            where=where,
            suspects={
                "lse is the logarithm of the sum of all exp(s): add m to log(l).": np.log(p.sum())
            },
        )


PUZZLE = Puzzle(
    title="online softmax",
    wanted="""\
Return o = softmax(s) v, shape (D,), and lse, the logarithm of the sum of exp(s). The scores s and
the rows of v come in blocks, which can be read once: s (n,) and v (n, D). Scores may be as large as
1000. A whole block may be masked (-infinity), but not all blocks.""",
    formula="""\
m = the maximum so far       l = the sum of exp(s - m) so far       o = the sum of exp(s - m) v
when m grows to m', all that is summed so far is multiplied by exp(m - m')""",
    told="The ladder of attention, rung 2",
    code="""
import numpy as np


def attend(blocks, D):
    m, l, o = -np.inf, 0.0, np.zeros(D)
    for s, v in blocks:
        # >>>
        new = max(m, s.max())
        if new == -np.inf:
            continue
        p, shrink = np.exp(s - new), np.exp(m - new)
        l = l * shrink + p.sum()
        o = o * shrink + p @ v
        m = new
        # ---
        pass  # your code
        # <<<
    return o / l, m + np.log(l)
""",
    hints=(
        "First the new maximum: max(m, s.max()). Then shrink l and o, then add the block's part.",
        "exp(m - new) is 1 while the maximum stays. At the first block m is -infinity and "
        "exp(-infinity) is 0, which is right.",
        "If the maximum is still -infinity, -inf - -inf is nan: skip such a block.",
    ),
    why=(
        "Why is lse worth returning?",
        "With it the backward pass computes p = exp(s - lse) of any block, without the maxima and "
        "sums of the forward pass. It is one number a row.",
    ),
    same="_kernels/attention/_attention.pxd",
    check=check,
)
