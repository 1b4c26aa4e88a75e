"""Arrays of strings, such as a vocabulary, as compact as in the file.

A Python string takes some fifty bytes besides its letters. A million strings of one letter are nine
megabytes in a file, and would be sixty in Python. Here they stay bytes, each after its length, and
are decoded on access. The offset of every sixteenth is stored, so access takes at most 16 steps.
"""

from array import array
from collections.abc import Iterator, Sequence
from itertools import islice
from struct import Struct
from typing import overload

STRIDE = 16
LENGTH = Struct("<Q")


class Strings(Sequence[str]):
    """An immutable sequence of strings; equal to a list or tuple of the same strings.

    Bytes that are not UTF-8, as in byte tokens, become surrogates (PEP 383).
    """

    __slots__ = ("_count", "_marks", "_raw")

    def __init__(self, raw: bytes, marks: "array[int]", count: int) -> None:
        """Take strings as stored in a file, and the offset of every STRIDE-th string."""
        self._raw, self._marks, self._count = raw, marks, count

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, index: int) -> str: ...

    @overload
    def __getitem__(self, index: slice) -> list[str]: ...

    def __getitem__(self, index: int | slice) -> str | list[str]:
        places = range(self._count)[index]  # raises IndexError, TypeError
        if isinstance(places, int):
            return next(self._from(places))
        return [next(self._from(place)) for place in places]

    def __iter__(self) -> Iterator[str]:
        return self._from(0)

    def _from(self, index: int) -> Iterator[str]:
        """Yield the strings from ``index`` on."""
        raw, unpack = self._raw, LENGTH.unpack_from
        at = self._marks[index // STRIDE] if index < self._count else 0
        for _ in range(index % STRIDE):
            at += LENGTH.size + unpack(raw, at)[0]
        for _ in range(index, self._count):
            begin = at + LENGTH.size
            at = begin + unpack(raw, at)[0]
            yield raw[begin:at].decode("utf-8", "surrogateescape")

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Strings):
            return self._raw == other._raw
        if isinstance(other, list | tuple):
            return len(self) == len(other) and all(a == b for a, b in zip(self, other, strict=True))
        return NotImplemented

    __hash__ = None  # type: ignore[assignment]  # equal to lists, which have none

    def __repr__(self) -> str:
        first = ", ".join(map(repr, islice(self, 3)))
        return f"[{first}{', ...' if len(self) > 3 else ''}]"
