"""Prepacked weights: frozen matrices in the order in which products read them, packed once.

A product packs a weight matrix before it multiplies by it, and dequantizes a quantized one. A
matrix that does not change can be packed once, before the runs. Each of the two products that read
it has its own packed form. The results are the same bits.
"""

from collections.abc import Mapping, Sequence
from functools import cache
from typing import NamedTuple
from weakref import WeakValueDictionary

import numpy as np

import toynn._kernels as kernels
from toynn.backends.cpu.program import CompiledProgram
from toynn.backends.host import HostBuffer
from toynn.backends.protocol import Buffer, Launch, Place, aligned
from toynn.backends.work import seconds, worth
from toynn.numerics import dtypes

READERS = ("matmul", "experts")

_packing = kernels.load("prepacked", kernels.level)
_form = cache(_packing.form)  # layers are alike
GAIN = 0.05  # of a product's time: what prepacking saves at the most rows that "auto" prepacks for


class Key(NamedTuple):
    """Which contiguous matrices are packed, and how."""

    place: Place
    product: str  # the product that reads them
    form: int  # see toynn/_kernels/gemm/prepacked.pyx
    matrices: int
    N: int
    K: int
    type: int  # GGUF's number

    @property
    def each(self) -> int:
        """Bytes of the panels of one matrix."""
        return int(_packing.nbytes(self.product, self.form, self.N, self.K))

    @property
    def nbytes(self) -> int:
        """Bytes of all panels."""
        return aligned(self.matrices * self.each)


def key_of(launch: Launch, prepack: str) -> Key | None:
    """Return the key of the panels that a launch by a frozen w would read; None if it has none."""
    op, _, product = launch.kernel.partition(".")
    if op not in READERS or product not in _packing.PRODUCTS:
        return None
    place, sizes = launch.tensors["w"], launch.sizes
    matrices = sizes.get("E", 1)  # experts share the rows
    rows = -(-sizes["M"] // matrices)
    N, K, type = sizes["N"], sizes["K"], sizes["type"]
    form = _form(product, rows, N, K, sizes["precision"], type)
    if form is None or (prepack == "auto" and rows > _rows_that_gain(form)):
        return None
    assert place is not None
    return Key(place, product, form, matrices, N, K, type)


def _rows_that_gain(form: int) -> int:
    """Return the most rows of x at which prepacking still saves about GAIN of a product.

    Packing is work per weight; multiplying is work per weight and row. So the faster a product
    multiplies, the more rows it takes until packing no longer matters (docs/performance.md, 5).
    """
    # floats, pairs, tiles of one, two and three parts, codes: the enum Form of _panels.pxd
    return (128, 256, 1024, 256, 128, 1024)[min(form, 5)]


class Prepacked:
    """The panels of one key, and which version of the weights they hold."""

    def __init__(self, key: Key, source: HostBuffer) -> None:
        self.key, self.nbytes, self._source = key, key.nbytes, source
        self._panels = HostBuffer.zeros(self.nbytes)
        self.version = -1  # ``changes`` of the source when it was packed
        product = _packing.PRODUCTS.index(key.product)
        # Prepacked in toynn/_kernels/gemm/_prepacked.pxd.
        self._kept = np.array([self._panels.address, product, key.form, key.N, key.K], np.int64)
        self._program = CompiledProgram(key.matrices, 0, [self._panels, source])
        pack = _packing.entries["pack"]
        for i in range(key.matrices):
            panels = self._panels.address + i * key.each
            w = (
                source.address
                + key.place.offset
                + i * dtypes.nbytes(dtypes.NAMES[key.type], key.N * key.K)
            )
            sizes = key._asdict() | {"P": key.each // 4, "product": product}
            ordered = tuple(sizes[name] for name in pack.signature.sizes)
            work = seconds(0, key.each)
            self._program.append("P", pack.capsule, [panels, w], ordered, (), 0, worth(work), work)

    @property
    def address(self) -> int:
        """Address of the struct that describes the panels to kernels."""
        return int(self._kept.ctypes.data)

    def refresh(self, threads: int) -> None:
        """Pack the matrix again if it was uploaded since the last time."""
        if self.version != self._source.changes:
            self._program.run("P", False, threads)
            self.version = self._source.changes


class Prepacks:
    """The prepacked weights of a backend, which its programs share."""

    def __init__(self) -> None:
        self._made: WeakValueDictionary[Key, Prepacked] = WeakValueDictionary()

    @property
    def nbytes(self) -> int:
        """Bytes of all panels that some program reads."""
        return sum(each.nbytes for each in self._made.values())

    def missing(self, launches: Sequence[Launch], prepack: str) -> int:
        """Return the bytes of the panels that are still to be made."""
        wanted = set(_wanted(launches, prepack).values()).difference(self._made)
        return sum(key.nbytes for key in wanted)

    def seconds_left(self, launches: Sequence[Launch], prepack: str) -> float:
        """Estimate how long each run packs the other weights, in seconds on one thread."""
        packed = _wanted(launches, prepack)
        keys = (key for i, key in _wanted(launches, "always").items() if i not in packed)
        rows = ((key, GAIN * _rows_that_gain(key.form)) for key in keys)  # as long as so many take
        return sum(seconds(round(2 * M * key.matrices * key.N * key.K), 0) for key, M in rows)

    def of(
        self, launches: Sequence[Launch], prepack: str, buffers: Mapping[str, Buffer]
    ) -> dict[int, Prepacked]:
        """Return the panels that launches read, by the number of the launch."""
        wanted = _wanted(launches, prepack)
        return {i: self._prepacked(key, buffers) for i, key in wanted.items()}

    def _prepacked(self, key: Key, buffers: Mapping[str, Buffer]) -> Prepacked:
        if (prepacked := self._made.get(key)) is None:
            source = buffers[key.place.buffer]
            assert isinstance(source, HostBuffer)
            prepacked = self._made[key] = Prepacked(key, source)
        return prepacked


def _wanted(launches: Sequence[Launch], prepack: str) -> dict[int, Key]:
    if prepack == "never":
        return {}
    reading = ((i, each) for i, each in enumerate(launches) if "w" in each.frozen)
    keys = {i: key_of(each, prepack) for i, each in reading}
    return {i: key for i, key in keys.items() if key is not None}
