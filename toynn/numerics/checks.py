"""Checks of declared and uploaded values: no kernel gets a bad shape, id or label."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from toynn.errors import ConfigError, LabelError, ShapeError
from toynn.numerics import dtypes

IGNORED = -100  # the integer label of a row without loss, as in PyTorch and the kernels

_I32 = np.dtype(np.int32)
_LIMITS = np.iinfo(np.int32)
_UNSIGNED = {kind.itemsize: kind for kind in map(np.dtype, ("u1", "u2", "u4", "u8"))}

Check = Callable[[str, NDArray[Any]], None]


def dimensions(name: str, shape: Sequence[int]) -> tuple[int, ...]:
    """Return a shape as a tuple of whole numbers, each at least 1. Raises ShapeError."""
    try:
        wrong = any(int(n) != n or n < 1 for n in shape)
    except (TypeError, ValueError, OverflowError):  # not a sequence of numbers, or infinity
        wrong = True
    if wrong:
        raise ShapeError(
            f"{name}: every dimension must be a whole number >= 1; got {shape} "
            "(values of a weight come as an array)"
        )
    if prod(shape) > 2**60:
        raise ShapeError(f"{name}: {shape} is more memory than can be addressed")
    return tuple(int(n) for n in shape)


def converted(name: str, array: ArrayLike, shape: tuple[int, ...], dtype: str) -> NDArray[Any]:
    """Return an array for a tensor: floats as float32, where too large ones become infinite.

    Raises ShapeError for another shape or kind of numbers.
    """
    values = np.asarray(array)
    if dtype in dtypes.QUANTIZED:
        nbytes = dtypes.nbytes(dtype, prod(shape))
        if values.dtype != np.uint8 or values.nbytes != nbytes:
            raise ShapeError(
                f"upload {name}: {dtype} of shape {shape} needs {nbytes} bytes, uint8; got "
                f"{values.nbytes}, {values.dtype}"
            )
        return values.reshape(-1)
    if values.shape != shape:
        raise ShapeError(f"upload {name}: expected {shape}; got {values.shape}")
    if values.dtype.kind not in ("iu" if dtype == "i32" else "fiu"):
        raise ShapeError(f"upload {name}: expected {dtype}; got {values.dtype}")
    if dtype == "f32" and values.dtype != np.float32:
        with np.errstate(over="ignore"):
            return values.astype(np.float32, copy=False)
    return values


def still_finite(name: str, array: ArrayLike, values: NDArray[Any]) -> None:
    """Check that conversion made no finite number infinite.

    Raises ShapeError.
    """
    if values is array or values.dtype != np.float32:
        return
    before = np.asarray(array)
    if before.dtype == np.float32:
        return
    lost = np.isinf(values) & np.isfinite(before)
    if lost.any():
        place = tuple(int(i) for i in np.argwhere(lost)[0])
        raise ShapeError(
            f"upload {name}: {before[place]} at {place} exceeds float32 "
            f"({np.finfo(np.float32).max:g})"
        )


def first_values(name: str, array: ArrayLike, dtype: str) -> NDArray[np.float32]:
    """Return a float32 copy of a weight's initial values. Raises ShapeError."""
    array = np.asarray(array)
    if dtype != "f32":
        raise ShapeError(
            f"{name}: only f32 weights can be declared with values; give the shape of {dtype} "
            "weights, and upload their bytes"
        )
    values = converted(name, array, array.shape, dtype)
    still_finite(name, array, values)
    return np.array(values, np.float32)


def held_by(
    name: str, array: NDArray[Any], dtype: str, shape: Sequence[int] | None
) -> tuple[int, ...]:
    """Return the shape of a mapped weight, which must fill its array exactly.

    Raises ShapeError for an array that does not fit, ConfigError for an unknown dtype.
    """
    _known(f"mapped {name}", dtype)
    element = np.dtype(np.float32 if dtype == "f32" else np.uint8)
    if array.dtype != element or not array.flags.c_contiguous:
        raise ShapeError(
            f"mapped {name}: {dtype} needs a C-contiguous {element} array; got {array.dtype}, "
            f"strides {array.strides}"
        )
    if shape is None and dtype != "f32":
        raise ShapeError(f"mapped {name}: bytes of {dtype} have no shape: give one")
    sizes = dimensions(f"mapped {name}", array.shape if shape is None else shape)
    stored_as(f"mapped {name}", dtype, sizes)
    nbytes = dtypes.nbytes(dtype, prod(sizes))
    if array.nbytes != nbytes:
        raise ShapeError(
            f"mapped {name}: {dtype} of shape {sizes} needs {nbytes} bytes; got {array.nbytes}"
        )
    return sizes


def stored_as(name: str, dtype: str, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return the shape of a weight, checked to have rows of whole blocks.

    Raises ShapeError for one that does not fit, ConfigError for an unknown dtype.
    """
    _known(name, dtype)
    if not dtypes.row_fits(dtype, shape):
        raise ShapeError(
            f"{name}: {dtype} needs rows of a multiple of {dtypes.DTYPES[dtype].elements} "
            f"elements; got shape {shape}"
        )
    return shape


def _known(name: str, dtype: str) -> None:
    if dtype != "f32" and dtype not in dtypes.QUANTIZED:
        raise ConfigError(
            f"{name}: dtype must be one of f32, {', '.join(dtypes.QUANTIZED)}; got {dtype!r}"
        )


def fits_i32(name: str, values: NDArray[Any]) -> None:
    """Check that integers survive the conversion to 32 bits. Raises ShapeError."""
    if values.dtype == _I32 or np.can_cast(values.dtype, _I32):
        return
    if values.size and (values.min() < _LIMITS.min or values.max() > _LIMITS.max):
        raise ShapeError(f"upload {name}: some {values.dtype} values do not fit into 32 bits")


@dataclass(frozen=True)
class Below:
    """A check that every integer is in 0..size-1; if ``ignorable``, some but not all may be -100.

    The check raises LabelError.
    """

    size: int
    ignorable: bool = False

    def __call__(self, name: str, values: NDArray[Any]) -> None:
        """Check an array. Raises LabelError."""
        if _all_below(self.size, values):
            return
        outside, ignored = (values < 0) | (values >= self.size), values == IGNORED
        allowed = f"0..{self.size - 1}"
        if self.ignorable:
            if ignored.all():
                raise LabelError(f"{name}: all {values.size} rows are ignored ({IGNORED})")
            outside &= ~ignored
            allowed += f", or {IGNORED} to ignore it"
        if outside.any():
            _refuse(name, values, outside, allowed)


def _all_below(size: int, values: NDArray[Any]) -> bool:
    """Return whether all integers are in 0..size-1; as unsigned, negative ones are large."""
    return bool(np.maximum.reduce(values.view(_UNSIGNED[values.itemsize]), axis=None) < size)


def count_within(most: int, of: int = 1) -> Check:
    """Return a check that a count is a multiple of ``of`` up to ``most``. Raises ShapeError."""

    def check(name: str, count: NDArray[Any]) -> None:
        if not of <= int(count) <= most or int(count) % of:
            allowed = (
                f"a multiple of {of} up to {most}" if of > 1 else f"a count of 1 to {most} rows"
            )
            raise ShapeError(f"{name}: must be {allowed}; got {int(count)}")

    return check


def segments_within(length: int) -> Check:
    """Return a check of segments: for each row, the first row of its segment.

    A row begins a segment (its value is its own index) or continues that of the row before. No
    segment crosses the end of a sequence of ``length`` rows. The check raises LabelError.
    """

    def check(name: str, first: NDArray[Any]) -> None:
        rows = np.arange(first.size)
        goes_on = np.concatenate([np.zeros(1, bool), first[1:] == first[:-1]])[: first.size]
        across = goes_on & (rows % max(length, 1) == 0)
        bad = (first != rows) & ~goes_on | across
        if not bad.any():
            return
        row = int(np.argmax(bad))
        if across[row]:
            allowed = f"{row}: a sequence of {length} rows begins there, and no segment crosses it"
        elif first[row] > row:
            allowed = f"at most {row}: a segment begins with its first row"
        else:
            allowed = f"{first[row - 1]}, as in the row before, or {row}, where a segment begins"
        raise LabelError(f"{name}: row {row} is {first[row]}; must be {allowed}")

    return check


def rising_to(rows: int) -> Check:
    """Return a check that bounds rise from at least 0 to at most ``rows``; it raises ShapeError."""

    def check(name: str, bounds: NDArray[Any]) -> None:
        if bounds[0] < 0 or bounds[-1] > rows or (np.diff(bounds) < 0).any():
            raise ShapeError(f"{name}: must rise from 0 to at most {rows}; got {bounds}")

    return check


def dense_labels(name: str, labels: NDArray[Any]) -> None:
    """Check that dense labels are finite, and that not all rows are zero (ignored).

    Raises LabelError.
    """
    if not np.isfinite(labels).all():
        row, column = np.argwhere(~np.isfinite(labels))[0]
        raise LabelError(f"{name}: row {row}, column {column} is {labels[row, column]}")
    if not labels.any():
        raise LabelError(f"{name}: all {len(labels)} rows are ignored (all zero)")


def thread_count(where: str, n_threads: object) -> None:
    """Check a limit of threads, which may exceed the number of cores; None means no limit.

    Raises ConfigError.
    """
    if n_threads is None:
        return
    whole = isinstance(n_threads, int | np.integer) and not isinstance(n_threads, bool)
    if not whole or int(n_threads) < 1:  # type: ignore[call-overload]
        raise ConfigError(
            f"{where}: n_threads must be a whole number, at least 1; got {n_threads!r}"
        )


def step_and_switch(name: str, values: NDArray[Any]) -> None:
    """Check dropout's control: a step of at least 0, and 1 or 0 for on or off.

    Raises ConfigError.
    """
    step, active = values.tolist()
    if step < 0 or active not in (0, 1):
        raise ConfigError(f"{name}: needs (step >= 0, 0 or 1); got ({step}, {active})")


def _refuse(name: str, values: NDArray[Any], bad: NDArray[np.bool_], allowed: str) -> None:
    row = int(np.argmax(bad))
    raise LabelError(f"{name}: row {row} is {values[row]}; must be {allowed}")
