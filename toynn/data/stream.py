"""Read a UTF-8 text block by block, so that a text of any size takes little memory."""

import codecs
import hashlib
import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from toynn.errors import DataError
from toynn.system.reading import open_file, readable

BOM = b"\xef\xbb\xbf"
BLOCK = 2**22  # bytes

#: Called with the bytes done so far, and the bytes in all.
Progress = Callable[[int, int], object]


def silent(done: int, of: int) -> None:
    """Report nothing."""


def raw_blocks(path: Path, progress: Progress = silent) -> Iterator[bytes]:
    """Yield a file's bytes without a byte order mark. Raises DataError."""
    with open_file(path) as file:
        size, done = os.fstat(file.fileno()).st_size, 0
        with readable(path):
            while part := file.read(BLOCK):
                done += len(part)
                yield part if done > len(part) else part.removeprefix(BOM)
                progress(done, size)


def blocks(path: Path, progress: Progress = silent) -> Iterator[str]:
    """Yield a text file in UTF-8, without its byte order mark. Raises DataError."""
    return decoded(path, raw_blocks(path, progress))


def decoded(path: str | Path, parts: Iterable[bytes]) -> Iterator[str]:
    """Decode UTF-8 blocks. Raises DataError, with line and offset, for anything else."""
    decoder = codecs.getincrementaldecoder("utf-8")()
    before = lines = 0  # bytes and line breaks before this part
    last = b""
    try:
        for part in parts:
            waiting = len(decoder.getstate()[0])
            last = part
            yield decoder.decode(part)
            before += len(part)
            lines += part.count(b"\n")
        waiting, last = len(decoder.getstate()[0]), b""
        decoder.decode(b"", final=True)
    except UnicodeDecodeError as error:
        at = error.start - waiting  # in this part; negative if the character began before it
        line = lines + last.count(b"\n", 0, max(at, 0)) + 1
        raise DataError(
            f"{path}:{line}: not UTF-8 text: byte 0x{error.object[error.start]:02x} "
            f"at offset {before + at} ({error.reason})"
        ) from error


def looked_at(path: Path, progress: Progress = silent) -> tuple[str, int]:
    """Return the SHA-256 and the size in bytes of a text without its mark. Raises DataError."""
    whole, size = hashlib.sha256(), 0
    for part in raw_blocks(path, progress):
        whole.update(part)
        size += len(part)
    if not size:
        raise DataError(f"{path}: the file is empty")
    return whole.hexdigest(), size
