"""Copies of weights in the order in which products read them, kept from run to run.

A product packs a matrix of weights before it multiplies by it, and expands it if it is stored in
blocks. Weights that do not change can be packed once: that is a copy for each of the two products
that read them, in float32 or, in medium, in bfloat16. Those that are trained can be packed by the
update, which has them in cache. Bits are the same with copies and without.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple
from weakref import WeakValueDictionary

import numpy as np

import toynn._kernels as kernels
from toynn import dtypes
from toynn.backends.cpu.program import CompiledProgram
from toynn.backends.cpu.work import seconds, worth
from toynn.backends.host import HostBuffer
from toynn.backends.protocol import Buffer, Launch, Packs, Place, aligned

__all__ = ["Copies", "Copy", "Trained"]

READERS = ("matmul", "experts")
UPDATE = "adamw.step"
MEDIUM = 2  # in toynn.precision.PRECISIONS

_packing = kernels.load("copies", kernels.level)


class Key(NamedTuple):
    """Which matrices, side by side, and how they are packed."""

    place: Place
    entry: str  # that multiplies by them
    form: int  # see toynn/_kernels/copies.pyx
    matrices: int
    N: int
    K: int
    type: int  # GGUF's number

    @property
    def each(self) -> int:
        """Bytes of the copy of one matrix."""
        return int(_packing.nbytes(self.entry, self.form, self.N, self.K))

    @property
    def nbytes(self) -> int:
        """Bytes of the copy."""
        return aligned(self.matrices * self.each)


def key_of(launch: Launch, packs: str = "always") -> Key | None:
    """Return the copy from which a launch is to read w; None if it does not read w packed."""
    op, _, entry = launch.kernel.partition(".")
    if op not in READERS or entry not in _packing.ENTRIES:
        return None
    place, sizes = launch.tensors["w"], launch.sizes
    matrices = sizes.get("E", 1)  # of experts: each has its share of the rows
    rows = -(-sizes["M"] // matrices)
    N, K, type = sizes["N"], sizes["K"], sizes["type"]
    form = _packing.form(entry, rows, N, K, sizes["precision"], type)
    if form is None or (packs == "auto" and rows > _rows_that_gain(form)):
        return None
    assert place is not None
    return Key(place, entry, form, matrices, N, K, type)


def _rows_that_gain(form: int) -> int:
    """Return up to how many rows of x a copy saves some 5 % of a product, or more.

    Packing is work for each weight, a product for each weight and row: the faster it multiplies,
    the more rows (docs/performance.md, 5).
    """
    floats, pairs, tiles = 128, 256, 1024
    return floats if form == 0 else pairs if form == 1 else tiles


def kept_while_trained(form: int, precision: int) -> bool:
    """Return whether updates keep copies of this form for products in this precision.

    Those of medium in bfloat16: of all others products have less to gain by what updates write.
    """
    return form != 0 and precision == MEDIUM


class Copy:
    """One matrix, packed, and when that was."""

    def __init__(self, key: Key, source: HostBuffer) -> None:
        self.key, self.nbytes, self._source = key, key.nbytes, source
        self._panels = HostBuffer.zeros(self.nbytes)
        self.version = -1  # of the source, when it was packed: how often that had been changed
        entry = _packing.ENTRIES.index(key.entry)
        # See Copy and Copies in toynn/_kernels/_copies.pxd: here, that is one.
        self.fields = [self._panels.address, entry, key.form, key.N, key.K]
        self._kept = np.array([1, *self.fields], np.int64)
        self._program = CompiledProgram(key.matrices, 0, [self._panels, source])
        for i in range(key.matrices):
            panels = self._panels.address + i * key.each
            w = (
                source.address
                + key.place.offset
                + i * dtypes.nbytes(dtypes.NAMES[key.type], key.N * key.K)
            )
            sizes = (entry, key.form, key.N, key.K, key.type)
            kernel, work = _packing.entries["pack"].capsule, seconds(0, key.each)
            self._program.append("P", kernel, [panels, w], sizes, (), 0, worth(work), work)

    @property
    def address(self) -> int:
        """Where kernels find what they need to know of it."""
        return int(self._kept.ctypes.data)

    def refresh(self, threads: int) -> None:
        """Pack the matrix again if it has been uploaded since."""
        if self.version != self._source.changes:
            self._program.run("P", False, threads)
            self.version = self._source.changes


class Trained:
    """All copies of a weight that updates change: each update packs it anew into all of them.

    As long as there is a program with such an update, none of the copies goes.
    """

    def __init__(self) -> None:
        self.copies: list[Copy] = []
        self._kept = np.zeros(1 + 5 * _packing.MOST, np.int64)

    def add(self, copy: Copy) -> None:
        """Have updates write one more copy; it may be there already."""
        if copy in self.copies:
            return
        first = 1 + 5 * len(self.copies)
        self._kept[first : first + 5] = copy.fields
        self.copies.append(copy)
        self._kept[0] = len(self.copies)

    @property
    def address(self) -> int:
        """Where the update finds what it needs to know of them."""
        return int(self._kept.ctypes.data)


class Copies:
    """The copies of a backend's weights, which its programs share."""

    def __init__(self) -> None:
        self._made: WeakValueDictionary[Key, Copy] = WeakValueDictionary()
        self._trained: WeakValueDictionary[Place, Trained] = WeakValueDictionary()

    @property
    def nbytes(self) -> int:
        """Bytes of all copies that a program reads."""
        return sum(copy.nbytes for copy in self._made.values())

    def missing(self, launches: Sequence[Launch], packs: Packs) -> int:
        """Return the bytes of the copies that there are not yet."""
        wanted = set(self._wanted(launches, packs).values()).difference(self._made)
        return sum(key.nbytes for key in wanted)

    def of(
        self, launches: Sequence[Launch], packs: Packs, buffers: Mapping[str, Buffer]
    ) -> dict[int, Copy]:
        """Return the copy from which a launch, by its number, reads its weights."""
        wanted = self._wanted(launches, packs)
        return {i: self._copy(key, buffers) for i, key in wanted.items()}

    def updated_by(self, launches: Sequence[Launch], packs: Packs) -> dict[int, Trained]:
        """Return the copies, those made later too, that an update, by its number, packs anew."""
        updates = _updates(launches) if packs.trained else {}
        return {i: self._trained_at(place) for place, i in updates.items()}

    def _trained_at(self, place: Place) -> Trained:
        trained = self._trained.get(place)
        if trained is None:
            trained = self._trained[place] = Trained()
            for copy in self._of(place):  # that outlived the programs which updated it
                trained.add(copy)
        return trained

    def _of(self, place: Place) -> list[Copy]:
        return [copy for copy in self._made.values() if copy.key.place == place]

    def _copy(self, key: Key, buffers: Mapping[str, Buffer]) -> Copy:
        if (copy := self._made.get(key)) is None:
            source = buffers[key.place.buffer]
            assert isinstance(source, HostBuffer)
            copy = self._made[key] = Copy(key, source)
            if trained := self._trained.get(key.place):
                trained.add(copy)
        return copy

    def _wanted(self, launches: Sequence[Launch], packs: Packs) -> dict[int, Key]:
        return {**_frozen(launches, packs.frozen), **self._of_trained(launches, packs.trained)}

    def _of_trained(self, launches: Sequence[Launch], trained: bool | None) -> dict[int, Key]:
        """Return the copies that a program with updates makes, or that another one has made."""
        if not trained:
            return {}
        updates, found = _updates(launches), dict[int, Key]()
        for i, launch in enumerate(launches):
            if (key := key_of(launch)) is None or "w" in launch.frozen:
                continue
            there = {each for each in (*self._made, *found.values()) if each.place == key.place}
            if key in there or (
                key.place in updates
                and launches[updates[key.place]].sizes["n"] == key.matrices * key.N * key.K
                and kept_while_trained(key.form, launch.sizes["precision"])
                and key_of(launch, "auto") is not None
                and len(there) < _packing.MOST
                and all((each.N, each.K) == (key.N, key.K) for each in there)
            ):
                found[i] = key
        return found


def _updates(launches: Sequence[Launch]) -> dict[Place, int]:
    """Return the number of the launch that updates the weight at a place."""
    return {
        place: i
        for i, launch in enumerate(launches)
        if launch.kernel == UPDATE and (place := launch.tensors["w"]) is not None
    }


def _frozen(launches: Iterable[Launch], packs: str) -> dict[int, Key]:
    if packs == "never":
        return {}
    keys = {i: key_of(each, packs) for i, each in enumerate(launches) if "w" in each.frozen}
    return {i: key for i, key in keys.items() if key is not None}
