"""Writing GGUF files, by the gguf library: a file is complete, and one that toynn reads, or absent.

Values become UINT32 (or INT32 if negative, or 64 bits if larger), FLOAT32, BOOL and STRING; lists
of integers [INT32]. A pair (value, "UINT64") names another type.
"""

import math
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGMLQuantizationType, GGUFValueType, GGUFWriter, quants
from numpy.typing import NDArray

from toynn.errors import GGUFError
from toynn.formats._gguf_finite import find_nonfinite
from toynn.formats._gguf_header import SCALARS, is_alignment, read_header
from toynn.formats._gguf_map import is_mapped, map_file
from toynn.formats._gguf_tensors import BLOCKS

__all__ = ["write"]

OUTTYPES = ("F32", "F16", "BF16", "Q8_0")
DTYPES: dict[str, np.dtype[Any]] = {name: dtype for name, dtype in SCALARS.values()} | {
    "BOOL": np.dtype(np.bool_)
}
NAMES = {dtype: name for name, dtype in DTYPES.items()}

Plain = str | int | float | bool | bytes | Sequence[Any]


def write(
    path: str | os.PathLike[str],
    metadata: Mapping[str, Any],
    tensors: Mapping[str, tuple[NDArray[Any], str]],
    *,
    overwrite: bool = False,
) -> None:
    """Write a file. Raises GGUFError, and then leaves at path what was there.

    metadata: key -> value, or (value, type). tensors: name -> (floats, "f32" | "f16" | "bf16" |
    "q8_0"), or (uint8 blocks as `GGUFFile.raw` returns them, their type).
    """
    path = Path(path)
    if is_mapped(path):
        raise GGUFError(
            f"{path}: cannot write: an open GGUF file is mapped from it; close it first"
        )
    if os.path.lexists(path) and not overwrite:
        raise GGUFError(f"{path}: already exists; pass overwrite=True to replace it")
    temporary = path.with_name(f".{path.name}.tmp{os.getpid()}")
    architecture = metadata.get("general.architecture", "")
    if not architecture or not isinstance(architecture, str):
        raise GGUFError(f"{path}: general.architecture: expected a name, got {architecture!r}")
    # Its place is the library's: first. Without a path it opens nothing yet.
    writer = GGUFWriter(temporary, architecture)
    try:
        _declare(writer, path, metadata, tensors)
        _write(writer, path, tensors)
        with map_file(temporary) as mapping:
            read_header(path, mapping)  # what the library let pass
        os.replace(temporary, path)
    except OSError as error:
        raise GGUFError(f"{path}: cannot write: {error.strerror or error}") from error
    finally:
        writer.close()
        with suppress(OSError):
            temporary.unlink()


def _declare(
    writer: GGUFWriter,
    path: Path,
    metadata: Mapping[str, Any],
    tensors: Mapping[str, tuple[NDArray[Any], str]],
) -> None:
    """Hand all but the data to the writer."""
    for key, value in metadata.items():
        what = f"{path}: {key}"
        plain, type, element = _typed(what, value)
        if key == "general.alignment":
            if type != "UINT32" or not is_alignment(plain):
                raise GGUFError(f"{what}: expected a UINT32 and power of two, got {value!r}")
            writer.data_alignment = plain
        if key != "general.architecture":
            sub_type = GGUFValueType[element] if element else None
            writer.add_key_value(key, plain, GGUFValueType[type], sub_type)
    for name, (array, outtype) in tensors.items():
        type, shape = _plan(f"{path}: {name}", array, outtype)
        elements, nbytes = BLOCKS[type]
        size = math.prod(shape) // elements * nbytes
        floats = np.dtype(np.float32)  # not uint8, or the library takes shape for one of bytes
        writer.add_tensor_info(name, shape, floats, size, GGMLQuantizationType[type])


def _write(writer: GGUFWriter, path: Path, tensors: Mapping[str, tuple[NDArray[Any], str]]) -> None:
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    for name, (array, outtype) in tensors.items():
        type, _ = _plan(f"{path}: {name}", array, outtype)
        blocks = _encode(array, type)
        if found := find_nonfinite(blocks, type):
            raise GGUFError(
                f"{path}: {name}: expected numbers that are finite as {type}, "
                f"got NaN or infinity in block {found[0]}"
            )
        writer.write_tensor_data(blocks)
    for file in writer.fout or ():
        file.flush()
        os.fsync(file.fileno())


def _plan(what: str, array: NDArray[Any], outtype: str) -> tuple[str, tuple[int, ...]]:
    """Return the type in ggml's spelling and the shape in elements of a tensor to write."""
    type = outtype.upper()
    raw = array.dtype == np.uint8
    known = tuple(BLOCKS) if raw else OUTTYPES
    if type not in known:
        raise GGUFError(f"{what}: expected a type of {', '.join(known)}, got {outtype}")
    if not raw and array.dtype.kind != "f":
        raise GGUFError(f"{what}: expected floats, or uint8 blocks, got {array.dtype}")
    elements, nbytes = BLOCKS[type]
    whole = nbytes if raw else elements
    if array.ndim < 1 or not array.size or array.shape[-1] % whole:
        raise GGUFError(f"{what}: expected rows of whole {whole}s ({type}), got {array.shape}")
    columns = array.shape[-1] // whole * elements
    return type, (*array.shape[:-1], columns)


def _encode(array: NDArray[Any], type: str) -> NDArray[np.uint8]:
    """Return the bytes of a tensor."""
    if array.dtype != np.uint8:
        with np.errstate(over="ignore", invalid="ignore"):  # looked for afterwards
            array = quants.quantize(
                array.astype(np.float32, copy=False), GGMLQuantizationType[type]
            )
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)


def _typed(what: str, value: Any) -> tuple[Any, str, str | None]:
    """Return a value as the library takes it, its type, and that of an array's elements."""
    type = None
    if isinstance(value, tuple) and len(value) == 2 and isinstance(value[1], str):
        value, type = value
    if isinstance(value, str):
        if type not in (None, "STRING"):
            raise GGUFError(f"{what}: expected a value of type {type}, got a string")
        return _bytes(what, value), "STRING", None
    if isinstance(value, list | tuple) and value and all(isinstance(item, str) for item in value):
        if type not in (None, "[STRING]"):
            raise GGUFError(f"{what}: expected a value of type {type}, got strings")
        return [_bytes(what, item) for item in value], "ARRAY", "STRING"
    array = np.asarray(value)
    if array.ndim > 1 or not array.size:
        raise GGUFError(f"{what}: expected a value or a row of them, got {array.shape}")
    one = array.ndim == 0
    name = type.strip("[]") if type else _infer(value, array)
    if name not in DTYPES or (type and one == type.startswith("[")):
        raise GGUFError(f"{what}: expected a value of type {type or 'of GGUF'}, got {value!r}")
    dtype = DTYPES[name]
    with np.errstate(over="ignore", invalid="ignore"):
        stored = array.astype(dtype) if array.dtype.kind in "biuf" else array
    # 3 is a FLOAT32, but 0.5 no UINT32 and 300 no UINT8.
    kinds = {"b": "b", "f": "iuf"}.get(dtype.kind, "iu")
    fits = array.dtype.kind in kinds and (
        np.array_equal(np.isfinite(stored), np.isfinite(array))
        if dtype.kind == "f"
        else np.array_equal(stored, array)
    )
    if not fits:
        raise GGUFError(f"{what}: expected a value of type {name}, got {value!r}")
    if one:
        return stored.item(), name, None
    return stored.tolist(), "ARRAY", name


def _infer(value: Any, array: NDArray[Any]) -> str:
    if isinstance(value, np.ndarray | np.generic):
        return NAMES.get(array.dtype, str(array.dtype))
    if array.dtype.kind == "i":
        low, high = int(array.min()), int(array.max())
        small = ("INT32", "UINT32")[array.ndim == 0 and low >= 0]
        fits = (low, high) == tuple(np.array([low, high], np.int64).astype(DTYPES[small]).tolist())
        return small if fits else "INT64"
    return {"u": "UINT64", "f": "FLOAT32", "b": "BOOL"}.get(array.dtype.kind, str(array.dtype))


def _bytes(what: str, text: str) -> bytes:
    try:
        return text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError as error:
        raise GGUFError(f"{what}: cannot be written as UTF-8: {error}") from error
