"""Checks of ids and labels, made when they are uploaded: no kernel meets a bad one."""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from toynn.errors import LabelError

__all__ = ["IGNORED", "Check", "dense_labels", "ids_below", "labels_below"]

IGNORED = -100  # the integer label of a row that does not count

Check = Callable[[str, NDArray[Any]], None]


def ids_below(size: int) -> Check:
    """Return a check that every id is in 0..size-1."""

    def check(name: str, ids: NDArray[Any]) -> None:
        if int(ids.min()) < 0 or int(ids.max()) >= size:
            _refuse(name, ids, (ids < 0) | (ids >= size), f"0..{size - 1}")

    return check


def labels_below(size: int) -> Check:
    """Return a check that every label is in 0..size-1 or ignored, and not all are ignored."""

    def check(name: str, labels: NDArray[Any]) -> None:
        outside = (labels < 0) | (labels >= size)
        if not outside.any():
            return
        ignored = labels == IGNORED
        if ignored.all():
            raise LabelError(f"{name}: all {labels.size} rows are ignored ({IGNORED})")
        if (outside & ~ignored).any():
            _refuse(name, labels, outside & ~ignored, f"0..{size - 1}, or {IGNORED} to ignore it")

    return check


def dense_labels(name: str, labels: NDArray[Any]) -> None:
    """Check that dense labels are finite, and that not every row is zero, that is, ignored."""
    if not np.isfinite(labels).all():
        row, column = np.argwhere(~np.isfinite(labels))[0]
        raise LabelError(f"{name}: row {row}, column {column} is {labels[row, column]}")
    if not labels.any():
        raise LabelError(f"{name}: all {len(labels)} rows are ignored (all zero)")


def _refuse(name: str, values: NDArray[Any], bad: NDArray[np.bool_], allowed: str) -> None:
    row = int(np.argmax(bad))
    raise LabelError(f"{name}: row {row} is {values[row]}; must be {allowed}")
