"""Gradient accumulation: micro-batches with different numbers of tokens."""

from typing import Any

import numpy as np

from toynn_puzzles.answer import Answer, Wrong
from toynn_puzzles.compare import compare
from toynn_puzzles.puzzle import Puzzle

TOKENS = (4, 1, 0, 3)


def check(answer: Answer) -> None:
    """Compare with the mean over all tokens; gradient() reuses the memory of its result."""
    rng = np.random.default_rng(0)
    each = [rng.standard_normal((n, 2, 3)) for n in TOKENS]
    memory, calls = np.zeros((2, 3)), []

    def gradient(batch: Any) -> tuple[Any, int]:
        calls.append(batch)
        if batch not in range(len(TOKENS)):
            raise Wrong(f"gradient() takes one of the micro-batches. It was given {batch!r}.")
        with np.errstate(all="ignore"):
            memory[...] = each[batch].sum(axis=0) / np.float64(TOKENS[batch])
        return memory, TOKENS[batch]

    got = answer("accumulate", list(range(len(TOKENS))), gradient)
    if len(calls) != len(TOKENS):
        raise Wrong(
            f"gradient() was called {len(calls)} times for {len(TOKENS)} micro-batches. "
            "A call is a whole forward and backward pass: call it once for each."
        )
    some = [(x.mean(axis=0), len(x)) for x in each if len(x)]
    means, total = [mean for mean, _ in some], sum(TOKENS)
    last, later = means[-1], [n for _, n in some]
    right = sum(x.sum(axis=0) for x in each) / total
    compare(
        "the gradient",
        np.array(got),
        right,
        suspects={
            "the mean of the micro-batches' means. A micro-batch with more tokens counts more.": (
                np.mean(means, axis=0)
            ),
            "dw is not multiplied by the number of its tokens.": sum(means) / total,
            "a mean over all micro-batches, also over the empty one.": sum(means) / len(TOKENS),
            "the sum of the micro-batches' means; the mean over all tokens is wanted.": sum(means),
            "the sum over all tokens is not divided by their number.": right * total,
            "divided by the number of micro-batches; divide by the number of tokens.": right
            * total
            / len(TOKENS),
            "gradient() writes into the same memory in each call. Copy what you keep.": sum(
                n * last for n in later
            )
            / total,
            "a micro-batch without tokens has a gradient of 0 / 0 = nan, and nan times 0 is nan. "
            "Leave it out.": np.full_like(right, np.nan),
        },
    )


PUZZLE = Puzzle(
    title="gradient accumulation",
    wanted="""\
Return the gradient of the mean loss over all tokens of all micro-batches.
gradient(batch) returns (dw, count): the gradient of the mean loss over the batch's tokens, and the
number of these tokens, which may be 0. The next call of gradient() overwrites dw's memory.""",
    code="""
def accumulate(batches, gradient):
    # >>>
    total, tokens = 0.0, 0
    for batch in batches:
        dw, count = gradient(batch)
        if count:
            total = total + dw * count
            tokens += count
    return total / tokens
    # <<<
""",
    hints=(
        "A batch with 4 tokens must count four times as much as one with 1 token. What is dw "
        "times the number of tokens?",
        "Add up dw * count and count; divide once at the end.",
        "Where count is 0, dw is nan: leave it out. total = total + dw * count makes a new array, "
        "so the old memory may be overwritten.",
    ),
    why=(
        "A batch of 7 rows in micro-batches of 4 and 3: what does the mean of their means get "
        "wrong?",
        "The 3 rows would weigh as much as the 4: each of them 1/6 instead of 1/7.",
    ),
    same="graph/autograd.py",
    check=check,
)
