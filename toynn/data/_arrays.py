"""Read a .json file that is one array of objects, item by item: it may be larger than memory."""

import codecs
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

from toynn.data.bounds import Bounds
from toynn.data.objects import ROWS, RepeatedKey
from toynn.data.stream import BOM, Progress
from toynn.errors import DataError

BLOCK = 2**20  # bytes
SPACE = " \t\r\n"


def begins_an_array(file: BinaryIO) -> bool:
    """Say whether the first character is a bracket."""
    return file.read(4096).removeprefix(BOM).lstrip()[:1] == b"["


def array_items(
    path: Path, file: BinaryIO, progress: Progress, bounds: Bounds
) -> Iterator[tuple[int, Any]]:
    """Yield the number and the value of each item of an array. Raises DataError."""
    text = _Text(path, file, progress, bounds)
    text.expect("[")
    number = 0
    while text.peek() != "]" or number:
        number += 1
        text.where = f"{path}:{number}"
        yield number, text.value()
        if text.peek() != ",":
            break
        text.expect(",")
    text.expect("]")
    if text.peek():
        rest = text.rest[text.at :][:20]
        raise DataError(f"{text.where}: not JSON: text after the array, {rest!r}")


class _Text:
    """The text of a file, read only as far as the parser needs it."""

    def __init__(self, path: Path, file: BinaryIO, progress: Progress, bounds: Bounds) -> None:
        self._bounds = bounds
        self.where, self.rest, self.at = str(path), "", 0
        self._file, self._progress, self._done = file, progress, 0
        self._decoder = codecs.getincrementaldecoder("utf-8-sig")()

    def _more(self, count: int = BLOCK) -> bool:
        """Read more bytes; return False at the end of the file."""
        raw = self._file.read(count)
        self._done += len(raw)
        try:
            more = self._decoder.decode(raw, final=not raw)
        except UnicodeDecodeError as error:
            byte = error.object[error.start]
            raise DataError(f"{self.where}: not UTF-8 text: byte 0x{byte:02x}") from error
        self.rest, self.at = self.rest[self.at :] + more, 0
        self._progress(self._done, self._done)
        return bool(raw)

    def peek(self) -> str:
        """Return the next character that is not white space; at the end, an empty string."""
        while True:
            while self.at < len(self.rest) and self.rest[self.at] in SPACE:
                self.at += 1
            if self.at < len(self.rest) or not self._more():
                return self.rest[self.at : self.at + 1]

    def expect(self, character: str) -> None:
        """Skip one expected character. Raises DataError for any other."""
        if (got := self.peek()) != character:
            raise DataError(f"{self.where}: not JSON: expected {character!r}; got {got!r}")
        self.at += 1

    def value(self) -> Any:
        """Return the next value. Raises DataError."""
        self.peek()
        count = BLOCK
        while True:
            try:
                value, self.at = ROWS.raw_decode(self.rest, self.at)
                return value
            except json.JSONDecodeError as error:
                self._bounds.check_line(self.where, len(self.rest) - self.at)
                if not self._more(count):
                    raise DataError(f"{self.where}: not JSON: {error.msg}") from error
                count *= 2  # doubling: a long item is not parsed again for each block
            except RepeatedKey as error:
                raise DataError(
                    f"{self.where}: expected each key of an object once; {error}"
                ) from None
            except RecursionError:
                raise DataError(f"{self.where}: JSON nested too deep to be read") from None
            except ValueError:
                raise DataError(f"{self.where}: JSON with a number too long to be read") from None
