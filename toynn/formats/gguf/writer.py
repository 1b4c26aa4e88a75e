"""Write GGUF files with the gguf library; a file is complete and readable, or absent."""

import io
import math
import os
from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from toynn.errors import GGUFError
from toynn.formats.files import replacing
from toynn.formats.gguf.deferred import Array, Deferred, Tensors
from toynn.formats.gguf.finite import find_nonfinite
from toynn.formats.gguf.header import is_alignment, read_header
from toynn.formats.gguf.latents import apart
from toynn.formats.gguf.mapping import is_mapped, map_file
from toynn.formats.gguf.stacks import stacked
from toynn.formats.gguf.tensors import BLOCKS
from toynn.formats.gguf.values import typed
from toynn.formats.quants import quantize

if TYPE_CHECKING:
    from gguf import GGUFWriter

#: The types that floats can be converted to.
WRITABLE = ("F32", "F16", "BF16", "Q8_0", "Q4_0")


def library() -> Any:
    """Return gguf, when a file is written: its import takes as long as NumPy's."""
    return import_module("gguf")


def write(
    path: str | os.PathLike[str],
    metadata: Mapping[str, Any],
    tensors: Tensors,
    *,
    overwrite: bool = False,
    check: Callable[[], object] | None = None,
) -> None:
    """Write a file. Raises GGUFError; an old file at path is then unchanged.

    If path is a symbolic link, the link stays and its target is replaced.

    Parameters
    ----------
    metadata
        key -> value, or (value, type) with a type as in `GGUFFile.types`. By default a number is a
        UINT32 (INT32 if negative, 64 bits if large), FLOAT32 or BOOL, and a list of integers is
        [INT32].
    tensors
        name -> (floats, "f32" | "f16" | "bf16" | "q8_0" | "q4_0"), or (uint8 blocks as
        `GGUFFile.raw` returns them, their type). Either array can be Deferred.
    check
        Called after writing; if it raises, the old file is unchanged too.
    """
    path = Path(path)
    check_target(path, overwrite=overwrite)
    _check_kinds(path, metadata, tensors)
    tensors = stacked(apart(metadata, tensors))
    # The library writes this key itself, and first.
    architecture, type, _ = typed(
        f"{path}: general.architecture", metadata.get("general.architecture", "")
    )
    if type != "STRING" or not architecture:
        raise GGUFError(f"{path}: general.architecture: expected a name, got {architecture!r}")
    writer = library().GGUFWriter(None, architecture)
    _add_metadata(writer, path, metadata)
    nbytes = _add_table(writer, path, tensors)
    quantized = any(BLOCKS[info.dtype.name][0] > 1 for info in writer.tensors[0].values())
    if quantized and "general.quantization_version" not in metadata:
        writer.add_quantization_version(2)
    with replacing(path, f"{nbytes} bytes of tensors", GGUFError) as file:
        writer.fout, writer.state = [file], library().WriterState.EMPTY
        _write_all(writer, file, path, tensors)
        with map_file(Path(file.name)) as mapping:
            read_header(path, mapping)  # refuses faults that the library does not check
        if check is not None:
            check()


def check_target(path: Path, *, overwrite: bool) -> None:
    """Raise GGUFError if path is mapped, a folder, or a file that must not be overwritten."""
    if is_mapped(path):
        raise GGUFError(
            f"{path}: cannot write: this file is being read; name another file, or in Python close "
            "the GGUF file that is open"
        )
    if os.path.isdir(path):  # also the current folder, which has no name
        raise GGUFError(f"{path}: cannot write: it is a folder; name the file to write")
    if os.path.lexists(path) and not overwrite:
        raise GGUFError(f"{path}: already exists; pass overwrite=True|--overwrite to replace it")


def _check_kinds(path: Path, metadata: object, tensors: object) -> None:
    """Raise GGUFError unless metadata and tensors have the right Python types."""
    for what, table in (("metadata", metadata), ("tensors", tensors)):
        if not isinstance(table, Mapping):
            raise GGUFError(f"{path}: {what}: expected a mapping by name, got {_kind(table)}")
        for name in table:
            if not isinstance(name, str):
                raise GGUFError(f"{path}: {what}: expected names that are str, got {name!r}")
    for name, pair in tensors.items() if isinstance(tensors, Mapping) else ():
        expected, got = "a pair (array, type)", _kind(pair)
        if isinstance(pair, tuple) and len(pair) == 2:
            array, type = pair
            if isinstance(array, np.ndarray | Deferred) and isinstance(type, str):
                continue
            expected, got = "(a NumPy array, a type's name)", f"({_kind(array)}, {_kind(type)})"
        raise GGUFError(f"{path}: {name}: expected {expected}, got {got}")


def _kind(value: object) -> str:
    return type(value).__name__


def _add_metadata(writer: "GGUFWriter", path: Path, metadata: Mapping[str, Any]) -> None:
    for key, value in metadata.items():
        what = f"{path}: {key}"
        plain, type, element = typed(what, value)
        if key == "general.alignment":
            if type != "UINT32" or not is_alignment(plain):
                raise GGUFError(f"{what}: expected a UINT32 and power of two, got {value!r}")
            writer.data_alignment = plain
        if key != "general.architecture":
            types = library().GGUFValueType
            writer.add_key_value(key, plain, types[type], types[element] if element else None)


def _add_table(writer: "GGUFWriter", path: Path, tensors: Tensors) -> int:
    """Add the tensor table; return the bytes of all tensors."""
    total = 0
    for name, (array, outtype) in tensors.items():
        type, shape = _plan(f"{path}: {name}", array, outtype)
        elements, nbytes = BLOCKS[type]
        size = math.prod(shape) // elements * nbytes
        total += size
        floats = np.dtype(np.float32)  # for uint8 the library takes shapes as bytes
        kind = library().GGMLQuantizationType[type]
        writer.add_tensor_info(name, shape, floats, size, kind)
    return total


def _write_all(writer: "GGUFWriter", file: io.BufferedWriter, path: Path, tensors: Tensors) -> None:
    """Write the file; only one tensor at a time is converted."""
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    for name, (array, outtype) in tensors.items():
        _write_one(writer, file, _blocks(f"{path}: {name}", array, outtype))
    file.flush()


def _write_one(writer: "GGUFWriter", file: IO[bytes], blocks: NDArray[np.uint8]) -> None:
    """Write a tensor and its padding.

    The library uses NumPy's tofile(), which raises nothing if the disk is full at the very end.
    """
    writer.write_padding(file, file.tell())
    file.write(blocks.data)
    writer.write_padding(file, blocks.nbytes)


def _blocks(what: str, array: Array, outtype: str) -> NDArray[np.uint8]:
    """Return the bytes of a tensor; a deferred one is made now."""
    type, _ = _plan(what, array, outtype)
    if isinstance(array, Deferred):
        planned, array = array, array.make()
        if not isinstance(array, np.ndarray):
            raise GGUFError(f"{what}: expected an array to be made, got {_kind(array)}")
        if (array.shape, array.dtype) != (planned.shape, planned.dtype):
            raise GGUFError(
                f"{what}: expected {planned.dtype} {planned.shape}, as planned; got {array.dtype} "
                f"{array.shape}"
            )
    return encode(what, array, type).reshape(-1)


def _plan(what: str, array: Array, outtype: str) -> tuple[str, tuple[int, ...]]:
    """Return ggml's name of a tensor's type, and its shape in elements."""
    type = outtype.upper()
    raw = array.dtype == np.uint8
    types = tuple(BLOCKS) if raw else WRITABLE
    if type not in types:
        raise GGUFError(f"{what}: expected a type of {', '.join(types)}, got {outtype}")
    if not raw and array.dtype.kind != "f":
        raise GGUFError(f"{what}: expected floats, or uint8 blocks, got {array.dtype}")
    elements, nbytes = BLOCKS[type]
    whole = nbytes if raw else elements
    if array.ndim < 1 or not array.size or array.shape[-1] % whole:
        raise GGUFError(f"{what}: expected rows of whole {whole}s ({type}), got {array.shape}")
    columns = array.shape[-1] // whole * elements
    return type, (*array.shape[:-1], columns)


def encode(what: str, array: NDArray[Any], type: str) -> NDArray[np.uint8]:
    """Return the bytes of a tensor, row by row, as `GGUFFile.raw` does.

    Raises GGUFError for a value that its type cannot hold.
    """
    if array.dtype != np.uint8:
        with np.errstate(over="ignore", invalid="ignore"):  # checked below
            array = array.astype(np.float32, copy=False)
            if type == "F16":
                array = array.astype(np.float16)
            elif type == "BF16":
                array = library().quantize(array, library().GGMLQuantizationType.BF16)
            elif type != "F32":
                try:
                    array = quantize(array, type)
                except GGUFError as error:
                    raise GGUFError(f"{what}: {error}") from None
    blocks = np.ascontiguousarray(array).view(np.uint8)
    if fault := find_nonfinite(blocks, type):
        raise GGUFError(
            f"{what}, {fault[0]}: expected a number that is finite as {type}, got NaN or infinity"
        )
    return blocks
