"""Losses of vectors, and batches that are larger than memory holds at once: GradCache.

The rows X (n K, C) are the vectors of n examples of K columns, one column after the other: anchors,
positives, any negatives; or texts and the texts that they are compared with. A loss of a batch
depends on all its rows. GradCache embeds some texts at a time, without a tape; takes loss and dL/dX
of the whole batch; and embeds the same texts again, with a tape that starts from their rows of
dL/dX: as the sum of X * dL/dX, whose gradients are those of the loss. So memory is that of some
texts, and of X.

Sources: Gao et al. 2021 (GradCache), arXiv:2101.06983; Kusupati et al. 2022 (Matryoshka),
arXiv:2205.13147; Schroff et al. 2015 (triplets), arXiv:1503.03832. See toynn/ops/texts.py.
"""

from collections.abc import Mapping
from math import sqrt
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from toynn import ops
from toynn.errors import ConfigError
from toynn.graph.tape import Tensor
from toynn.numerics import checks
from toynn.session import Session

Floats = NDArray[np.float32]
LOSSES = ("infonce", "cosent", "triplet")
_HIDDEN = np.float32(-1e30)  # see ops.cosent
_NEAR = 1e-6  # is added to differences, whose length then has a gradient everywhere


def units(s: Session, widths: set[int]) -> dict[int, Tensor]:
    """Declare the gains of RMSNorms that make rows of these widths have length 1."""
    return {d: s.mapped(f"unit.{d}", np.full(d, 1 / sqrt(d), np.float32)) for d in widths}


def record_loss(s: Session, x: Tensor, columns: int, task: Any, gains: Mapping[int, Tensor]) -> Any:
    """Record the task's loss of vectors x (n columns, C); with dims, the sum over them.

    Cosines are of rows that are given length 1 here, and so are the first d numbers of rows. Raises
    ConfigError for columns that the loss does not have, and for dims above C.
    """
    texts, C = x.shape
    n = texts // columns
    if (columns != 3 and task.loss == "triplet") or (columns != 2 and task.loss == "cosent"):
        raise ConfigError(f"Task: the loss {task.loss} does not take {columns} columns")
    if max(task.dims, default=0) > C:
        raise ConfigError(f"Task: dims must be at most {C}, the vectors' width; got {task.dims}")
    rows = {"infonce": n, "cosent": 1}
    if task.teacher_weight:
        labels = [s.input("labels", (n, texts - n))]
    else:
        labels = [s.input("labels", (rows[task.loss],), "i32")] if task.loss in rows else []
    labels += [s.input("hidden", (n, n))] if task.loss == "cosent" else []
    total = None
    for d in task.dims or (C,):
        y = x if d == C else ops.part(s, x, (slice(None), slice(0, d)))
        if task.dims or task.loss != "triplet":
            y = ops.rmsnorm(s, y, gains[d], 1e-30)
        parts = [ops.part(s, y, slice(k * n, (k + 1) * n)) for k in range(columns)]
        loss = _LOSS[task.loss](s, y, parts, labels, task)
        total = loss if total is None else ops.add(s, total, loss)
    return total


def _infonce(s: Session, x: Tensor, parts: list[Tensor], labels: list[Tensor], task: Any) -> Tensor:
    n, texts = parts[0].shape[0], x.shape[0]
    others = ops.part(s, x, slice(n, texts))
    loss = ops.infonce(s, parts[0], others, labels[0], task.factor)
    if not task.symmetric:
        return loss
    back = ops.infonce(s, parts[1], parts[0], labels[0], task.factor)
    return ops.scale(s, ops.add(s, loss, back), 0.5)


def _cosent(s: Session, x: Tensor, parts: list[Tensor], labels: list[Tensor], task: Any) -> Tensor:
    return ops.cosent(s, parts[0], parts[1], labels[1], labels[0], task.factor)


def _triplet(s: Session, x: Tensor, parts: list[Tensor], labels: list[Tensor], task: Any) -> Tensor:
    """Record the mean of max(|a - p| - |a - q| + margin, 0), with _NEAR in each difference."""
    anchors, *others = parts
    near, far = (
        ops.sqrt(s, ops.sum(s, ops.square(s, ops.add(s, ops.sub(s, anchors, each), _NEAR)), 1))
        for each in others
    )
    return ops.mean(s, ops.relu(s, ops.add(s, ops.sub(s, near, far), task.margin)))


_LOSS = {"infonce": _infonce, "cosent": _cosent, "triplet": _triplet}


def inputs_of(task: Any, texts: int, columns: int, labels: Any) -> dict[str, ArrayLike]:
    """Return the inputs of the loss of the examples of so many texts.

    Labels of cosent are scores, a number for each example; those of a task with a teacher are the
    teacher's vectors of all texts (texts, D), or None. Raises ShapeError for other labels.
    """
    n = texts // columns
    if task.teacher_weight:
        return {"labels": _shares(task, n, texts, labels)}
    if task.loss != "cosent":
        return {"labels": np.arange(n, dtype=np.int32)} if task.loss == "infonce" else {}
    scores = checks.converted("labels", labels, (n,), "f32")
    pairs = scores[:, None] < scores[None, :]
    pairs[0, 0] = True
    return {
        "labels": np.zeros(1, np.int32),
        "hidden": np.where(pairs, np.float32(0), _HIDDEN),
    }


def _shares(task: Any, n: int, texts: int, told: Any) -> Floats:
    """Return the share of each candidate: 1 of an anchor's own, mixed with what a teacher says."""
    own = np.eye(n, texts - n, dtype=np.float32)
    if told is None:
        return own
    vectors = checks.converted("labels", told, (texts, np.shape(told)[-1]), "f32")
    vectors = vectors / np.maximum(
        np.linalg.norm(vectors, axis=1, keepdims=True), np.float32(1e-30)
    )
    z = task.factor * vectors[:n] @ vectors[n:].T
    p = np.exp(z - z.max(axis=1, keepdims=True))
    p /= p.sum(axis=1, keepdims=True)
    return np.asarray(own + task.teacher_weight * (p - own), np.float32)


class WholeBatch:
    """The loss of a batch's vectors, and its gradient; similarities are computed in chunks."""

    def __init__(self, task: Any, width: int, **of_session: Any) -> None:
        self._session, self._task = Session(**of_session), task
        self._gains = units(self._session, {width, *task.dims})
        self._session.finalize_weights()

    def loss(
        self, vectors: Floats, columns: int, labels: Any, *, train: bool = True
    ) -> tuple[float, Floats | None]:
        """Return the loss and its gradient by ``vectors``; without ``train``, the loss and None.

        Raises what ``record_loss`` and ``inputs_of`` do: ConfigError, ShapeError.
        """
        s, task = self._session, self._task

        def record() -> tuple[Any, Tensor, Tensor]:
            x = s.input("vectors", vectors.shape)
            s.set_loss(loss := record_loss(s, x, columns, task, self._gains))
            gradient = s.gradient_of(x)
            s.build_backward()
            return s.tape, loss, gradient

        tape, loss, gradient = s.record((vectors.shape, columns), record)
        values = inputs_of(task, len(vectors), columns, labels) | {"vectors": vectors}
        s.feed({tape.inputs[name]: array for name, array in values.items()}, tape)
        s.run("update" if train else "loss", tape=tape)  # no weight is updated; no batch waits
        return float(s.download(loss)), s.download(gradient) if train else None
