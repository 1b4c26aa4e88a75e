"""Squares of gradients, summed while a product stores them, for the norm of all gradients.

Otherwise the norm would read each gradient from memory once more. A product's sums are valid until
the host (ranks, a checkpoint, a reset) or another program changes the gradients. Then the norm sums
the same tiles again, with the same bits (see grad_norm.pyx).
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from toynn._kernels import grad_norm
from toynn.backends.host import HostBuffer
from toynn.backends.protocol import Buffer, Launch, aligned
from toynn.numerics import dtypes

NORM, PRODUCT = "grad_norm.forward", "matmul.backward_weight"
LEAST = 1 << 16  # elements of a gradient: smaller ones may still be in cache
FLOAT = dtypes.nbytes("f32", 1)


class SummedGradient(NamedTuple):
    """A gradient whose squares are summed by the last product that writes it."""

    launch: int  # the number of the product
    first: int  # its first element, counted over all gradients
    N: int
    K: int

    @property
    def tiles(self) -> int:
        """The number of sums; 0 if the product leaves none."""
        return int(grad_norm.tiles(self.N, self.K))


class Squares:
    """The sums that a program's products leave for its norm, and whether they are still valid."""

    def __init__(self, launches: Sequence[Launch]) -> None:
        norms = [i for i, launch in enumerate(launches) if launch.kernel == NORM]
        self._norm = norms[0] if norms else 0
        self._parts = _parts(launches, self._norm) if norms else []
        self.nbytes = aligned(sum(FLOAT * part.tiles for part in self._parts))

    def kept(self, launches: Sequence[Launch], buffers: Mapping[str, Buffer]) -> dict[int, int]:
        """Allocate the sums; return the address of ``kept`` for launches, by their numbers."""
        if not self._parts:
            return {}
        place = launches[self._norm].tensors["g"]
        assert place is not None
        gradients = buffers[place.buffer]
        assert isinstance(gradients, HostBuffer)
        self._gradients, self._seen = gradients, (-1, -1)
        self._sums = HostBuffer.zeros(self.nbytes)
        # Squares and AllSquares in toynn/_kernels/gemm/_squares.pxd.
        self._rows = np.zeros((len(self._parts), 6), np.int64)
        sums = self._sums.address
        for row, part in zip(self._rows, self._parts, strict=True):
            row[:4] = part.first, part.N, part.K, sums
            sums += FLOAT * part.tiles
        self._all = np.array([len(self._parts), self._rows.ctypes.data], np.int64)
        addresses = [row.ctypes.data for row in self._rows]
        products = [part.launch for part in self._parts]
        return dict(zip(products, addresses, strict=True)) | {self._norm: self._all.ctypes.data}

    def before(self, computed: int) -> None:
        """Forget the sums if the host or another program has changed the gradients."""
        if self._parts and self._seen != (self._gradients.changes, computed):
            self._rows[:, 4] = False

    def after(self, computed: int) -> None:
        """Mark the sums as up to date with the gradients."""
        if self._parts:
            self._seen = self._gradients.changes, computed


def _parts(launches: Sequence[Launch], norm: int) -> list[SummedGradient]:
    """Return the parts in the order of memory. Sizes alone decide, since the bits depend on it.

    A gradient is written as a whole: by one launch, or by several that add to it in turn.
    """
    start, n = launches[norm].tensors["g"], launches[norm].sizes["n"]
    assert start is not None
    parts: dict[int, SummedGradient | None] = {}  # by first element
    for i in range(norm):
        launch = launches[i]
        for name, place in launch.tensors.items():
            if place is None or place.buffer != start.buffer:
                continue
            first = (place.offset - start.offset) // FLOAT
            N, K = launch.sizes.get("N", 0), launch.sizes.get("K", 0)
            fits = launch.kernel == PRODUCT and name == "dw" and 0 <= first <= n - N * K
            parts[first] = SummedGradient(i, first, N, K) if fits and N * K >= LEAST else None
    tiled = [part for part in parts.values() if part is not None and part.tiles]
    return sorted(tiled, key=lambda part: part.first)
