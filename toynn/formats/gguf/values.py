"""Convert Python values to the types of GGUF metadata."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from toynn.errors import GGUFError
from toynn.formats.gguf.header import SCALARS
from toynn.formats.gguf.strings import Strings

DTYPES: dict[str, np.dtype[Any]] = {name: dtype for name, dtype in SCALARS.values()}
DTYPES["BOOL"] = np.dtype(np.bool_)
NAMES = {dtype: name for name, dtype in DTYPES.items()}

#: By NumPy kind of a type: the kinds of numbers that it accepts. 3 can be a FLOAT32, but 0.5 cannot
#: be an INT32.
KINDS = {"b": "b", "i": "iu", "u": "iu", "f": "iuf"}


def typed_metadata(
    metadata: Mapping[str, Any], types: Mapping[str, str]
) -> dict[str, tuple[Any, str]]:
    """Return a file's metadata in the form that `write` takes, without empty arrays.

    Keys without a type are left out.
    """
    return {
        key: (value, types[key])
        for key, value in metadata.items()
        if key in types and (not isinstance(value, list | Strings | np.ndarray) or len(value))
    }


def typed(what: str, value: Any) -> tuple[Any, str, str | None]:
    """Convert a value, or a pair (value, type), for the gguf library.

    Return the value, its type, and the type of its elements if it is an array. Raises GGUFError for
    a value that fits no type, or not the given one.
    """
    type = None
    if isinstance(value, tuple) and len(value) == 2:
        value, type = value
        if not isinstance(type, str):
            raise GGUFError(f"{what}: expected (value, a type's name), got {(value, type)!r:.80}")
    if isinstance(value, str):
        _expect(what, type in (None, "STRING"), type, value)
        return _bytes(what, value), "STRING", None
    texts = isinstance(value, Strings) or (
        isinstance(value, list) and all(isinstance(item, str) for item in value)
    )
    if texts and value:
        _expect(what, type in (None, "[STRING]"), type, value)
        return [_bytes(what, item) for item in value], "ARRAY", "STRING"
    try:
        array = np.asarray(value)
    except (ValueError, TypeError):  # e.g. rows of different lengths
        array = np.empty((), object)
    if array.ndim > 1 or not array.size:
        raise GGUFError(
            f"{what}: expected a value, or a list with at least one, got shape {array.shape}"
        )
    name = _name(value, array)
    if type is None and name not in DTYPES:
        raise GGUFError(
            f"{what}: expected a text, bool or number of at most 64 bits, or a list or array of "
            f"one kind of them, got {repr(value)[:80]}"
        )
    if type is None:
        type = f"[{name}]" if array.ndim else name
    element = type.strip("[]")
    _expect(what, element in DTYPES and type.startswith("[") == bool(array.ndim), type, value)
    stored = _stored(array, DTYPES[element])
    _expect(what, stored is not None, type, value)
    plain = stored.tolist() if stored is not None else None
    return (plain, "ARRAY", element) if array.ndim else (plain, element, None)


def _expect(what: str, holds: bool, type: str | None, value: Any) -> None:
    if not holds:
        raise GGUFError(f"{what}: expected a value of type {type}, got {str(value)[:80]!r}")


def _name(value: Any, array: NDArray[Any]) -> str:
    """Return the default type of numbers: NumPy's own for its arrays, else the usual one."""
    if array.dtype.kind == "i" and not isinstance(value, np.ndarray | np.generic):
        usual = "INT32" if array.ndim or array < 0 else "UINT32"
        return usual if _stored(array, DTYPES[usual]) is not None else "INT64"
    if isinstance(value, float | list) and array.dtype.kind == "f":
        return "FLOAT32"
    return NAMES.get(array.dtype, str(array.dtype))


def _stored(array: NDArray[Any], dtype: np.dtype[Any]) -> NDArray[Any] | None:
    """Return the numbers in a type, or None if they do not fit."""
    if array.dtype.kind not in KINDS[dtype.kind]:
        return None
    with np.errstate(over="ignore", invalid="ignore"):
        stored = array.astype(dtype)
    if dtype.kind == "f":  # rounded, but not to infinity
        return stored if np.array_equal(np.isfinite(stored), np.isfinite(array)) else None
    return stored if np.array_equal(stored, array) else None


def _bytes(what: str, text: str) -> bytes:
    try:
        return text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError as error:
        raise GGUFError(f"{what}: cannot be written as UTF-8: {error}") from error
