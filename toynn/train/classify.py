"""The quality of a classifier: loss, accuracy, and a confusion matrix."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

__all__ = ["confusion", "confusion_text", "in_top", "loss_and_accuracy"]

Matrix = NDArray[np.int64]

WIDEST = 16  # classes of a matrix in text; with more, the most common mistakes are listed
MISTAKES = 10


def loss_and_accuracy(logits: NDArray[np.float32], labels: NDArray[np.int32]) -> dict[str, float]:
    """Return the mean cross-entropy in nats, and the share of correct rows.

    Logits are (B, V), labels (B,).
    """
    wide = logits.astype(np.float64)
    shifted = wide - wide.max(axis=1, keepdims=True)
    log_p = shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
    return {
        "loss": float(-log_p[np.arange(len(labels)), labels].mean()),
        "accuracy": float((logits.argmax(axis=1) == labels).mean()),
    }


def in_top(logits: NDArray[np.float32], labels: NDArray[np.int32], count: int) -> float:
    """Return the share of rows whose label is among the ``count`` likeliest classes.

    Logits are (B, V), labels (B,).
    """
    own = logits[np.arange(len(labels)), labels]
    return float(((logits > own[:, None]).sum(axis=1) < count).mean())


def confusion(labels: ArrayLike, predicted: ArrayLike, classes: int) -> Matrix:
    """Count the rows of each class (its row) that were predicted as each class (its column)."""
    pairs = np.asarray(labels, np.int64) * classes + np.asarray(predicted, np.int64)
    return np.bincount(pairs, minlength=classes * classes).reshape(classes, classes)


def confusion_text(matrix: Matrix, names: Sequence[str]) -> str:
    """Return the matrix as lines of text; for many classes, the most common mistakes."""
    if len(names) > WIDEST:
        return "\n".join(_mistakes(matrix, names))
    shown = [name if len(name) <= 12 else f"{name[:11]}\N{HORIZONTAL ELLIPSIS}" for name in names]
    first = max(len(name) for name in shown)
    width = max(len(str(matrix.max())), 3)
    head = " ".join(f"{name[:width]:>{width}}" for name in shown)
    lines = [f"{'':{first}}  {head}  <- predicted"]
    for name, row in zip(shown, matrix, strict=True):
        counts = " ".join(f"{count or '.':>{width}}" for count in row.tolist())
        lines.append(f"{name:>{first}}  {counts}")
    return "\n".join(lines)


def _mistakes(matrix: Matrix, names: Sequence[str]) -> list[str]:
    wrong = matrix.copy()
    np.fill_diagonal(wrong, 0)
    commonest = np.argsort(-wrong, axis=None, kind="stable")[:MISTAKES]
    pairs = [divmod(int(place), len(names)) for place in commonest if wrong.flat[place]]
    return [
        f"{int(wrong[i, j]):6,} of {int(matrix[i].sum()):,} {names[i]} predicted as {names[j]}"
        for i, j in pairs
    ] or ["no mistakes"]
