"""Memory-map tokens in a .bin file, as nanoGPT and llm.c write them.

    nanoGPT     uint16 ..., to the end of the file
    llm.c       256 int32: magic, version, number of tokens, zeros; then the tokens
                magic 20240520, version 1: uint16 (GPT-2); 20240801, version 7: uint32 (Llama 3)

nanoGPT sometimes writes a meta.pkl next to them. It is a pickle, which can run any code, so it is
not opened.
Sources: data/*/prepare.py of github.com/karpathy/nanoGPT; dev/data/data_common.py and
llmc/dataloader.h of github.com/karpathy/llm.c.
"""

import os
import re
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from toynn.errors import DataError
from toynn.system.reading import open_file, readable

Tokens = NDArray[np.uint16] | NDArray[np.uint32]

HEADER = 256 * 4  # bytes
#: Version and type, by magic number.
FORMATS: dict[int, tuple[int, np.dtype[Any]]] = {
    20240520: (1, np.dtype("<u2")),
    20240801: (7, np.dtype("<u4")),
}
#: The first bytes of .bin files that hold no tokens.
OTHERS = {
    b"PK\x03\x04": "a zip archive, as PyTorch's checkpoints are",
    b"\x80\x02": "a pickle, as PyTorch's old checkpoints are",
    b"GGUF": "a GGUF file: a model",
    b"ggml": "a model of an old llama.cpp",
    np.int32(20240326).tobytes(): "a model of llm.c",
    np.int32(20240327).tobytes(): "a state of llm.c, for its tests",
}
BLOCK = 2**22  # tokens


def find(folder: Path) -> tuple[list[Path], list[Path]] | None:
    """Return a folder's training files and validation files; None if it has no training files.

    nanoGPT's names are train.bin and val.bin; llm.c's end with _train.bin and _val.bin. Shards
    (x_train_000001.bin, ...) are sorted by number. Raises DataError for files of several series.
    """
    train, valid = (_series(folder, kind) for kind in ("train", "val"))
    return (train, valid) if train else None


def _series(folder: Path, kind: str) -> list[Path]:
    """Return the shards of a kind ("train" or "val"), sorted by number. Raises DataError."""
    named = re.compile(rf"((?:.*_)?{kind})(?:_(\d+))?\.bin", re.DOTALL)
    matches = {path: match for path in folder.iterdir() if (match := named.fullmatch(path.name))}
    numbers = {path: (match[1], match[2] is not None) for path, match in matches.items()}
    order = sorted(matches, key=lambda path: (int(matches[path][2] or 0), path.name))
    if len(set(numbers.values())) > 1:
        names = ", ".join(path.name for path in sorted(matches)[:5])
        raise DataError(
            f"{folder}: expected one {kind}.bin, or the shards of one series; got {names}"
        )
    return order


def map_tokens(path: Path, vocab_size: int) -> Tokens:
    """Map a file of tokens, and check every id. Raises DataError.

    Refused are: a file in neither format, a length other than the header says, and ids of
    ``vocab_size`` or more.
    """
    with open_file(path) as file:
        size = os.fstat(file.fileno()).st_size
        with readable(path):
            head = file.read(HEADER)
        if not size:
            raise DataError(f"{path}: the file is empty")
        offset, dtype, count = _layout(path, head, size)
        _check_ids(path, file, offset, dtype, vocab_size)
        try:
            return np.memmap(file, dtype, "r", offset, (count,))
        except OSError as error:
            raise DataError(f"{path}: cannot map: {error.strerror or error}") from error


def _layout(path: Path, head: bytes, size: int) -> tuple[int, np.dtype[Any], int]:
    """Return where the tokens begin, their type, and how many there are."""
    for begin, kind in OTHERS.items():
        if head.startswith(begin):
            raise DataError(f"{path}: expected tokens of nanoGPT or llm.c; it is {kind}")
    magic = int.from_bytes(head[:4], "little")
    swapped = int.from_bytes(head[:4], "big")
    if magic not in FORMATS:
        if swapped in FORMATS:
            raise DataError(
                f"{path}: llm.c's magic number in big-endian order: write the file as little-endian"
            )
        if size % 2:
            raise DataError(
                f"{path}: expected nanoGPT's tokens of two bytes, or llm.c's header; got "
                f"{size} bytes, an odd number"
            )
        return 0, np.dtype("<u2"), size // 2
    if len(head) < HEADER:
        raise DataError(f"{path}: expected a header of {HEADER} bytes; got {size} in all")
    wanted, dtype = FORMATS[magic]
    version, count = (int(each) for each in np.frombuffer(head, "<i4", 2, 4))
    if version != wanted:
        raise DataError(f"{path}: llm.c's version: expected {wanted}; got {version}")
    if count < 1:
        raise DataError(f"{path}: llm.c's number of tokens: expected at least 1; got {count}")
    needed = HEADER + count * dtype.itemsize
    if size != needed:
        raise DataError(
            f"{path}: expected {needed} bytes, a header and {count} tokens; got {size}: it is "
            f"{'cut short' if size < needed else 'too long'}"
        )
    return HEADER, dtype, count


def _check_ids(
    path: Path, file: BinaryIO, offset: int, dtype: np.dtype[Any], vocab_size: int
) -> None:
    """Check all ids. They are read, not mapped: mapped pages would count as memory."""
    begin = 0
    file.seek(offset)
    while raw := file.read(BLOCK * dtype.itemsize):
        part = np.frombuffer(raw, dtype)
        if int(part.max()) >= vocab_size:
            at = int(np.argmax(part >= vocab_size))
            raise DataError(
                f"{path}: token {begin + at}: expected ids of 0..{vocab_size - 1}; got "
                f"{int(part[at])}: the file was made with another tokenizer (--tokenizer)"
            )
        begin += len(part)
