"""Checks of what is declared and uploaded: no kernel meets a bad shape, id or label."""

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from toynn import dtypes
from toynn.errors import ConfigError, LabelError, ShapeError

__all__ = [
    "IGNORED",
    "Check",
    "converted",
    "dense_labels",
    "dimensions",
    "finite",
    "fits_i32",
    "held_by",
    "ids_below",
    "labels_below",
    "step_and_switch",
]

IGNORED = -100  # the integer label of a row that does not count

Check = Callable[[str, NDArray[Any]], None]


def dimensions(name: str, shape: Sequence[int]) -> tuple[int, ...]:
    """Return a shape as a tuple of whole numbers, each at least 1."""
    if any(int(n) != n or n < 1 for n in shape):
        raise ShapeError(f"{name}: every dimension must be a whole number >= 1; got {shape}")
    if prod(shape) > 2**60:
        raise ShapeError(f"{name}: {shape} is more memory than can be addressed")
    return tuple(int(n) for n in shape)


def converted(name: str, array: ArrayLike, shape: tuple[int, ...], dtype: str) -> NDArray[Any]:
    """Return an array for a tensor: floats as float32, too large ones infinite."""
    values = np.asarray(array)
    if values.shape != shape:
        raise ShapeError(f"upload {name}: expected {shape}; got {values.shape}")
    if values.dtype.kind not in ("iu" if dtype == "i32" else "fiu"):
        raise ShapeError(f"upload {name}: expected {dtype}; got {values.dtype}")
    if dtype == "f32" and values.dtype != np.float32:
        with np.errstate(over="ignore"):
            return values.astype(np.float32, copy=False)
    return values


def held_by(
    name: str, array: NDArray[Any], dtype: str, shape: Sequence[int] | None
) -> tuple[int, ...]:
    """Return the shape of a weight that stays in an array, which must hold exactly that."""
    if dtype != "f32" and dtype not in dtypes.BLOCKS:
        raise ConfigError(
            f"mapped {name}: dtype must be one of f32, {', '.join(dtypes.BLOCKS)}; got {dtype!r}"
        )
    element = np.dtype(np.float32 if dtype == "f32" else np.uint8)
    if array.dtype != element or not array.flags.c_contiguous:
        raise ShapeError(
            f"mapped {name}: {dtype} needs a C-contiguous {element} array; got {array.dtype}, "
            f"strides {array.strides}"
        )
    if shape is None and dtype != "f32":
        raise ShapeError(f"mapped {name}: bytes of {dtype} do not tell a shape: give one")
    sizes = dimensions(f"mapped {name}", array.shape if shape is None else shape)
    if not dtypes.row_fits(dtype, sizes):
        raise ShapeError(
            f"mapped {name}: {dtype} needs rows of a multiple of {dtypes.DTYPES[dtype].elements} "
            f"elements; got shape {sizes}"
        )
    nbytes = dtypes.nbytes(dtype, prod(sizes))
    if array.nbytes != nbytes:
        raise ShapeError(
            f"mapped {name}: {dtype} of shape {sizes} needs {nbytes} bytes; got {array.nbytes}"
        )
    return sizes


def fits_i32(name: str, values: NDArray[Any]) -> None:
    """Check that integers survive the conversion to 32 bits."""
    if np.can_cast(values.dtype, np.int32):
        return
    limits = np.iinfo(np.int32)
    if values.size and (values.min() < limits.min or values.max() > limits.max):
        raise ShapeError(f"upload {name}: some {values.dtype} values do not fit into 32 bits")


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


def finite(name: str, values: NDArray[Any]) -> None:
    """Check that all settings are finite."""
    if not np.isfinite(values).all():
        raise ConfigError(f"{name}: every number must be finite; got {values.tolist()}")


def step_and_switch(name: str, values: NDArray[Any]) -> None:
    """Check the control of dropout: a step of at least 0, and 1 or 0 for on or off."""
    step, active = values.tolist()
    if step < 0 or active not in (0, 1):
        raise ConfigError(f"{name}: needs (step >= 0, 0 or 1); got ({step}, {active})")


def _refuse(name: str, values: NDArray[Any], bad: NDArray[np.bool_], allowed: str) -> None:
    row = int(np.argmax(bad))
    raise LabelError(f"{name}: row {row} is {values[row]}; must be {allowed}")
