"""A read position in the header of a mapped file that is not trusted.

Sizes and counts are Python ints, which do not overflow. Each is compared with the bytes left before
anything is read or allocated.
"""

import mmap
from pathlib import Path
from struct import Struct

from toynn.errors import GGUFError

MAX_INT64 = (1 << 63) - 1
MAX_HEADER_BYTES = 1 << 25  # Gemma 3's, with 262 144 tokens and their merges, takes half
MAX_TEXT_BYTES = 1 << 20  # of all names and single strings; Python may need four times as much
U32, U64 = Struct("<I"), Struct("<Q")


class Cursor:
    """A position that cannot leave the file, or pass the largest header."""

    def __init__(self, path: Path, data: mmap.mmap) -> None:
        self.path, self.data, self.size = path, data, len(data)
        self.at, self.end = 0, min(self.size, MAX_HEADER_BYTES)
        self._text_left = MAX_TEXT_BYTES

    def error(self, what: str, offset: int, expected: object, got: object) -> GGUFError:
        """Return the error to raise."""
        return GGUFError(f"{self.path}: {what} at byte {offset}: expected {expected}, got {got}")

    @property
    def left(self) -> str:
        """The bytes that are left, for messages."""
        of = "the file" if self.end == self.size else f"a header, {MAX_HEADER_BYTES} at most"
        return f"{self.end - self.at} bytes left of {of}"

    def take(self, what: str, nbytes: int) -> int:
        """Skip nbytes and return where they begin."""
        begin = self.at
        if nbytes > self.end - begin:
            raise self.error(what, begin, f"{nbytes} bytes", self.left)
        self.at += nbytes
        return begin

    def number(self, what: str, code: Struct) -> int:
        """Read an unsigned number."""
        (value,) = code.unpack_from(self.data, self.take(what, code.size))
        return int(value)

    def count(self, what: str, smallest: int, limit: int = MAX_INT64) -> int:
        """Read a count of items that take at least `smallest` bytes each."""
        begin = self.at
        count = self.number(what, U64)
        room = (self.end - self.at) // smallest
        if count > room:
            raise self.error(what, begin, f"at most {room} ({self.left})", count)
        if count > limit:
            raise self.error(what, begin, f"at most {limit}", count)
        return count

    def string(self, what: str, limit: int = MAX_INT64) -> bytes:
        """Read a length and that many bytes."""
        length = self.count(f"length of {what}", 1, min(limit, self._text_left))
        self._text_left -= length
        begin = self.take(what, length)
        return self.data[begin : self.at]

    def name(self, what: str, limit: int) -> str:
        """Read a string that names something: UTF-8, and not empty."""
        begin = self.at
        raw = self.string(what, limit)
        if not raw:
            raise self.error(what, begin, "a name", "an empty string")
        try:
            return raw.decode()
        except UnicodeDecodeError:
            raise self.error(what, begin, "UTF-8", repr(raw)) from None
