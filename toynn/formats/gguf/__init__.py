"""Read and write GGUF files, llama.cpp's format.

    with gguf.open("model.gguf") as file:
        file.metadata["general.name"], file.tensors["token_embd.weight"].type
        weights = file["token_embd.weight"]  # float32, or float16 as the file has it
    gguf.write("new.gguf", {"general.architecture": "llama"}, {"a.weight": (weights, "q8_0")})

A file is memory-mapped. Its float arrays are views of the mapping, which lives as long as they do.
Meanwhile no program may write into the file or truncate it: access to a missing page kills the
process (SIGBUS). Replacing the file with a new one, as `write` does, is harmless.

A model may be split into several files (NAME-00001-of-00003.gguf, ...). Name any one of them; all
are mapped.
"""

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from toynn.errors import GGUFError, LifecycleError
from toynn.formats.gguf.deferred import Deferred, stored_as
from toynn.formats.gguf.finite import find_nonfinite
from toynn.formats.gguf.header import Value
from toynn.formats.gguf.latents import joined, parts_of, whole_of
from toynn.formats.gguf.parts import PartFile, open_parts
from toynn.formats.gguf.stacks import one_by_one
from toynn.formats.gguf.strings import Strings
from toynn.formats.gguf.tensors import READABLE, TensorInfo
from toynn.formats.gguf.values import typed_metadata
from toynn.formats.gguf.writer import WRITABLE, check_target, encode, write
from toynn.formats.opened import Opened
from toynn.formats.quants import dequantize

__all__ = [
    "WRITABLE",
    "Deferred",
    "GGUFFile",
    "Strings",
    "TensorInfo",
    "Value",
    "check_target",
    "encode",
    "open",
    "stored_as",
    "typed_metadata",
    "write",
]

VIEWS: dict[str, np.dtype[Any]] = {"F32": np.dtype("<f4"), "F16": np.dtype("<f2")}

Scalar = TypeVar("Scalar", bool, int, float, str)


class GGUFFile(Opened):
    """An open model: `metadata` by key, `tensors` by name; file[name] is an array.

    `path` is its file, or the first of several.
    """

    error = GGUFError
    pairs_apart = False  # rows that RoPE rotates together are adjacent, as GGUF has them

    def __init__(self, parts: list[PartFile]) -> None:
        header = parts[0].header
        # Keys about the split are not used after this, and would be wrong in a copy.
        entries = {k: e for k, e in header.entries.items() if not k.startswith("split.")}
        self.path = parts[0].path
        self.version = header.version
        self.alignment = header.alignment
        self.metadata: dict[str, Value] = {k: entry.value for k, entry in entries.items()}
        #: UINT32, STRING ...; [INT32], [STRING] ... for arrays
        self.types: dict[str, str] = {k: entry.type for k, entry in entries.items()}
        self.tensors: dict[str, TensorInfo] = {}
        self.nbytes = sum(len(part.mapping) for part in parts)
        self._offsets = {k: entry.offset for k, entry in entries.items()}
        self._mappings = {part.path: part.mapping for part in parts}  # empty after close()
        self._watched = [part.mapping.watched for part in parts]  # used after close() too
        self._paths: dict[str, Path] = {}  # by tensor
        for part in parts:
            self.tensors |= part.header.tensors
            self._paths |= dict.fromkeys(part.header.tensors, part.path)
        for name, (stack, info) in one_by_one(self.tensors).items():
            self._paths[name] = self._paths[stack]
            self.tensors[name] = info
            self.tensors.pop(stack, None)
        self._halves = parts_of(self.tensors)  # pairs of tensors that are one matrix here
        for name, halves in self._halves.items():
            self._paths[name] = self._paths[halves[0].name]
            self.tensors[name] = joined(name, *halves)
            for half in halves:
                del self.tensors[half.name]

    def close(self) -> None:
        """Release the mapping. Arrays taken from it stay valid, and keep it while they live."""
        mappings, self._mappings = self._mappings, {}
        for mapping in mappings.values():
            with suppress(BufferError):  # such arrays exist
                mapping.close()

    def __iter__(self) -> Iterator[str]:
        return iter(self.tensors)

    def __getitem__(self, name: str) -> NDArray[Any]:
        """Return a tensor: a read-only view if it is F32 or F16, else dequantized to float32.

        Raises GGUFError as ``raw`` does, and for a type that toynn cannot read.
        """
        raw = self.raw(name)
        info = self.tensors[name]
        if info.type in VIEWS:
            # Copied only if general.alignment is 1 or 2 and the floats are not aligned.
            view: NDArray[Any] = np.require(raw.view(VIEWS[info.type]), requirements="A")
            view.flags.writeable = False
            return view
        if info.type not in READABLE:
            raise GGUFError(
                f"{self._paths[name]}: {name} at byte {info.offset}: expected one of "
                f"{', '.join(READABLE)}, got {info.type}, a type that toynn does not support"
            )
        return dequantize(raw, info.type, info.shape)

    def raw(self, name: str) -> NDArray[np.uint8]:
        """Return the bytes of a tensor as stored in the file: a read-only view, row by row.

        Raises GGUFError for an unknown name or an empty tensor, LifecycleError after ``close``.
        """
        if not self._mappings:
            raise LifecycleError(f"{self.path}: {name} is read after close()")
        info = self.tensors.get(name)
        if info is None:
            raise GGUFError(f"{self.path}: missing tensor {name!r}; it has {len(self)} others")
        if name not in self._halves:
            return self._region(info)
        halves = [dequantize(self._region(h), h.type, h.shape) for h in self._halves[name]]
        return whole_of(*halves).view(np.uint8)

    def _region(self, info: TensorInfo) -> NDArray[np.uint8]:
        """Return the bytes of a tensor of the file, as ``raw`` does."""
        path = self._paths[info.name]
        if not info.nbytes:
            raise GGUFError(
                f"{path}: dimensions of {info.name}: expected at least 1 each, got {info.shape}"
            )
        flat = np.frombuffer(self._mappings[path], np.uint8, info.nbytes, info.offset)
        return flat.reshape(*info.shape[:-1], -1)

    def is_copied(self, name: str) -> bool:
        """Return whether ``stored`` makes a copy: it does for a matrix that is two in the file."""
        return name in self._halves

    def stored(self, name: str) -> NDArray[Any]:
        """Return a tensor as stored in the file: float32, or the bytes of another type.

        Raises GGUFError as ``raw`` does.
        """
        raw = self.raw(name)
        return self[name] if self.tensors[name].type == "F32" else raw

    @property
    def architecture(self) -> str:
        """The model's architecture, such as llama."""
        return self.require("general.architecture", str)

    def require(self, key: str, kind: type[Scalar]) -> Scalar:
        """Return the value of a key that must exist and have type ``kind``; text must be UTF-8.

        Raises GGUFError.
        """
        if key not in self.metadata:
            raise GGUFError(f"{self.path}: key not found in model: {key}")
        value = self.metadata[key]
        if type(value) is kind and (not isinstance(value, str) or value.isascii() or _utf8(value)):
            return value
        got = repr(value) if isinstance(value, str) else self.types[key]
        raise GGUFError(
            f"{self.path}: {key} at byte {self._offsets[key]}: expected {kind.__name__}, got {got}"
        )

    def check_finite(self) -> None:
        """Raise GGUFError for a tensor with a NaN or infinite weight or block scale."""
        for name, info in self.tensors.items():
            if info.nbytes and (fault := find_nonfinite(self.raw(name), info.type)):
                where, byte = fault
                raise GGUFError(
                    f"{self._paths[name]}: {name}, {where} at byte {info.offset + byte}: expected "
                    f"a finite number, got NaN or infinity (`gguf.open(path, "
                    "check=False)` reads it anyway)"
                )

    def check_unchanged(self) -> None:
        """Raise GGUFError if a file has changed since it was opened."""
        for file in self._watched:
            file.check()


def _utf8(text: str) -> bool:
    return not any("\ud800" <= letter <= "\udfff" for letter in text)


def open(path: str | os.PathLike[str], *, check: bool | None = None) -> GGUFFile:
    """Map a file and read its header. Raises GGUFError for a malformed file.

    Of a split model all files are mapped; they must be in one folder. `check` searches the weights
    for NaN and infinity; None means only if the file is small.
    """
    return GGUFFile(open_parts(Path(path))).looked_through(check)
