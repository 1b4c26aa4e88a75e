"""Limits of a file of rows: the bytes of a line, and of all unpacked data.

A few megabytes of .gz can unpack to one line of many gigabytes. Reading stops with an error at the
bound, and takes no more memory than the bound.
"""

import io
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from toynn.errors import DataError

LONGEST = 2**26  # bytes of a line: some are whole books
#: With fewer rows none are held out, unless the user asks for it.
FEW = 20
RATIO, LEAST = 100, 2**30  # of the compressed bytes: texts unpack to 3 to 20 times as many


@dataclass(frozen=True)
class Bounds:
    """Bounds of a file.

    Attributes
    ----------
    line
        The most bytes of a line, or of an item of an array.
    unpacked
        The most bytes that a compressed file may unpack to. None: 100 times its
        size, at least 1 GiB.
    """

    line: int = LONGEST
    unpacked: int | None = None

    def most(self, size: int) -> int:
        """Return how many bytes a compressed file of ``size`` bytes may unpack to."""
        return max(RATIO * size, LEAST) if self.unpacked is None else self.unpacked

    def check_line(self, where: str, length: int) -> None:
        """Raise DataError for a line that is too long."""
        if length > self.line:
            raise DataError(
                f"{where}: expected at most {self.line:,} bytes in a line or an item; got more: "
                "cut it into lines, or raise the bound with --max-line"
            )

    def check_unpacked(self, path: Path, size: int, length: int) -> None:
        """Raise DataError if a compressed file of ``size`` bytes unpacks to too many."""
        if length > self.most(size):
            raise DataError(
                f"{path}: expected {size:,} packed bytes to unpack to at most "
                f"{self.most(size):,}; got more: if you trust the file, raise the bound with "
                "--max-unpacked"
            )

    def counted(self, path: Path, size: int, unpacked: Any) -> BinaryIO:
        """Return a stream of unpacked bytes that raises DataError once it is too long."""
        return io.BufferedReader(_Counted(self, path, size, unpacked), 2**16)


USUAL = Bounds()


class _Counted(io.RawIOBase):
    def __init__(self, bounds: Bounds, path: Path, size: int, unpacked: Any) -> None:
        self._bounds, self._path, self._size = bounds, path, size
        self._unpacked, self._done = unpacked, 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        some = self._unpacked.read(len(buffer))
        buffer[: len(some)] = some
        self._done += len(some)
        self._bounds.check_unpacked(self._path, self._size, self._done)
        return len(some)
