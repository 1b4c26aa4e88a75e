"""Cross entropy: logits of any size, rows without a label, the mean over the labelled rows."""

import numpy as np

from toynn_puzzles.answer import Answer
from toynn_puzzles.compare import Expected, compare, expected, fail
from toynn_puzzles.puzzle import Puzzle

IGNORED = -100


def check(answer: Answer) -> None:
    """Compare the loss and its gradient; then with logits of 1000."""
    case = expected("cross_entropy", N=6, V=5)
    _compare(answer, case, "")
    case.inputs["logits"][1] += 1000
    _compare(answer, case, ", with logits near 1000")


def _compare(answer: Answer, case: Expected, where: str) -> None:
    logits, labels = case.inputs["logits"], case.inputs["labels"]
    got = answer.several("loss_and_gradient", "loss, dlogits", logits, labels)
    counting = labels != IGNORED
    loss, rows = float(case.function().item()), int(counting.sum())
    total = loss * rows
    p = np.exp(logits - logits.max(1, keepdims=True))
    p /= p.sum(1, keepdims=True)
    right = case.right["dlogits"] / float(case.dy.item())
    picked = np.where(labels == IGNORED, -1, labels)
    everywhere = p.copy()
    everywhere[np.arange(len(labels)), picked] -= 1
    if not np.isfinite(np.asarray(got["loss"], float)).all():
        fail(
            f"loss is {got['loss']}{where}.",
            "exp of 1000 is infinite. Subtract the largest logit of each row first.",
        )
    compare(
        "loss",
        got["loss"],
        loss,
        where=where,
        suspects={
            "the mean is over all rows; rows with label -100 do not count.": total / len(labels),
            "the sum over rows, where their mean is wanted.": total,
            "rows with label -100 count in it.": -np.log(p[np.arange(len(labels)), picked]).sum()
            / len(labels),
            "the sign: a loss is -log of a probability.": -loss,
        },
    )
    dlogits = np.asarray(got["dlogits"])
    case = Expected(case.inputs, case.function, np.ones(()), {"dlogits": right}, {"rows": rows})
    case.compare(
        {"dlogits": got["dlogits"]},
        dlogits={
            "-100 is taken for a label, counted from the end.": everywhere / rows,
            "rows with label -100 have a gradient. They need 0.": np.where(
                counting[:, None], right, dlogits if dlogits.shape == right.shape else np.nan
            ),
            "1 is not subtracted at the label.": p * counting[:, None] / rows,
        },
    )


PUZZLE = Puzzle(
    title="cross entropy and its gradient",
    wanted="""\
Return loss, a number, and dlogits (N, V), its gradient, from logits (N, V) and labels (N,).
The loss is the mean over the rows that count. A row whose label is -100 does not count.
Logits may be 1000, and exp(1000) is infinite: the loss must be finite all the same.""",
    formula="loss = mean over rows n that count of -log softmax(logits[n])[labels[n]]",
    code="""
import numpy as np


def loss_and_gradient(logits, labels):
    # >>>
    counting = labels != -100
    rows = counting.sum()
    n, label = np.flatnonzero(counting), labels[counting]
    shifted = logits - logits.max(axis=1, keepdims=True)
    log_p = shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
    loss = -log_p[n, label].sum() / rows
    dlogits = np.exp(log_p)
    dlogits[n, label] -= 1
    dlogits[~counting] = 0
    dlogits /= rows
    # <<<
    return loss, dlogits
""",
    hints=(
        "softmax does not change if one number is subtracted from a whole row. Subtract the row's "
        "largest logit before exp.",
        "Of one row: dlogits = softmax(logits), minus 1 at the label.",
        "Count the rows with labels != -100. Divide loss and dlogits by that number, and set the "
        "rows of dlogits that do not count to 0.",
    ),
    why=(
        "Each row of dlogits sums to 0. Why?",
        "A number added to all logits of a row changes no probability, so the loss does not "
        "move along (1, ..., 1).",
    ),
    same="_kernels/losses/cross_entropy.pyx",
    check=check,
)
