"""The quality of a classifier: figures of a batch and of all labels, and a confusion matrix.

    classes, several    accuracy, macro-f1, Matthews' correlation; micro-f1
    number              mean squared error, Spearman's rank correlation
    tokens              entity-f1, of whole entities: their words and their kind must be right

An entity is a longest run of tags of one kind: B- and S- begin one, E- and S- end one, and I-
begins one where no entity of its kind can go on. Such runs are what seqeval counts by default.
"""

from collections.abc import Iterable, Sequence
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from toynn.data.batch import IGNORED
from toynn.data.problems import Problem

Floats = NDArray[Any]

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
    of_label = logits[np.arange(len(labels)), labels]
    return float(((logits > of_label[:, None]).sum(axis=1) < count).mean())


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


# -- Classifiers of texts --------------------------------------------------------------------------


def figures_of_batch(problem: Problem, outputs: Floats, labels: ArrayLike) -> dict[str, Any]:
    """Return the mean loss, and the share of right rows if there are classes.

    Rows with the label -100 are not counted. Of several classes, all must be right.
    """
    labels = np.asarray(labels)
    wide = np.asarray(outputs, np.float64)
    if problem == "number":
        return {"loss": float(np.square(wide - labels.reshape(wide.shape)).mean())}
    if problem == "several":
        losses = np.logaddexp(0, wide) - labels * wide
        right = ((wide > 0) == (labels > 0)).all(axis=1)
        return {"loss": float(losses.mean()), "accuracy": float(right.mean())}
    counted = labels != IGNORED
    return dict(loss_and_accuracy(outputs[counted], labels[counted]))


def joint(problem: Problem, parts: Iterable[tuple[Any, Any]], k: int) -> dict[str, Any]:
    """Return the figures of all labels and decisions, by the names that metrics.jsonl has.

    Each part has both. Of ``k`` classes they are ints (n,) or bools (n, k), of numbers floats (n,),
    of token classes lists of tags, one list for each text.
    """
    columns = zip(*parts, strict=True)
    if problem == "tokens":
        texts = zip(*map(chain.from_iterable, columns), strict=True)
        pairs = [(entities(a), entities(b)) for a, b in texts]
        both = sum(len(a & b) for a, b in pairs)
        real, told = (sum(len(pair[n]) for pair in pairs) for n in (0, 1))
        return {
            "entities/precision": both / told if told else 0.0,
            "entities/recall": both / real if real else 0.0,
            "entities/f1": 2 * both / (told + real) if told + real else 0.0,
        }
    labels, decided = (np.concatenate(each) for each in columns)
    if problem == "number":
        return {"numbers/spearman": spearman(labels.ravel(), decided.ravel())}
    if problem == "several":
        a, b = labels > 0, decided > 0
        right, either = (a & b).sum(axis=0), a.sum(axis=0) + b.sum(axis=0)
        micro = 2 * right.sum() / either.sum() if either.any() else 0.0
        return {
            "classes/macro_f1": float(_f1(right, either).mean()),
            "classes/micro_f1": float(micro),
        }
    matrix = confusion(labels, decided, k)
    real, told, right = matrix.sum(axis=1), matrix.sum(axis=0), np.diag(matrix)
    seen = real + told > 0
    return {
        "classes/macro_f1": float(_f1(right, real + told)[seen].mean()),
        "classes/matthews": _matthews(real.astype(float), told.astype(float), float(right.sum())),
    }


def _f1(right: Floats, either: Floats) -> Floats:
    return np.asarray(2 * right / np.maximum(either, 1))


def _matthews(real: Floats, told: Floats, right: float) -> float:
    n = real.sum()
    spread = (n * n - real @ real) * (n * n - told @ told)
    return float((n * right - real @ told) / np.sqrt(spread)) if spread else 0.0


def of_scores(z: Floats, labels: Floats) -> dict[str, float]:
    """Return binary cross-entropy and accuracy of logits z (n,) on labels from 0 to 1 (n,).

    A logit above 0 and a label above a half agree.
    """
    loss = (np.logaddexp(0, z) - labels * z).mean()
    return {"loss": float(loss), "accuracy": float(((z > 0) == (labels > 0.5)).mean())}


def spearman(a: Floats, b: Floats) -> float:
    """Return the correlation of ranks, equal numbers having their mean rank; 0 without spread."""
    x, y = (_ranks(each) - (len(each) - 1) / 2 for each in (a, b))
    spread = np.sqrt((x @ x) * (y @ y))
    return float(x @ y / spread) if spread else 0.0


def _ranks(values: Floats) -> Floats:
    _, which, counts = np.unique(values, return_inverse=True, return_counts=True)
    ends = np.cumsum(counts)
    return np.asarray((ends - (counts + 1) / 2)[which], np.float64)


def entities(tags: Sequence[str]) -> set[tuple[str, int, int]]:
    """Return the entities of a text: kind, the first word, and the word after the last one."""
    spans, begin, kind, goes_on = set[tuple[str, int, int]](), 0, "", False
    for k, tag in enumerate([*tags, "O"]):
        mark, name = (tag[0], tag[2:]) if tag[1:2] == "-" else ("I", tag)
        outside = tag in ("O", "") or mark == "O"
        joins = goes_on and not outside and name == kind and mark not in "BS"
        if kind and not joins:
            spans.add((kind, begin, k))
            kind = ""
        if not outside and not joins:
            begin, kind = k, name
        goes_on = not outside and mark not in "ES"
    return spans
