"""What a training step is fed."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from toynn.numerics.checks import IGNORED

__all__ = ["IGNORED", "Batch", "PackedBatch"]


class Batch(NamedTuple):
    """B windows of T tokens, flattened: three int32 arrays (B*T,)."""

    ids: NDArray[np.int32]
    positions: NDArray[np.int32]
    labels: NDArray[np.int32]

    @property
    def rows(self) -> int:
        """How many labels count."""
        return int(np.count_nonzero(self.labels != IGNORED))


@dataclass(frozen=True)
class PackedBatch:
    """Examples one behind another, which do not see each other: four int32 arrays (n,).

    Attributes
    ----------
    segments
        Of each token, the number of the first one of its example.
    room
        The tokens that a batch has room for: B*T of B rows, which are filled as well as may be.
    """

    ids: NDArray[np.int32]
    positions: NDArray[np.int32]
    labels: NDArray[np.int32]
    segments: NDArray[np.int32]
    room: int

    def __iter__(self) -> Iterator[NDArray[np.int32]]:
        """Yield the arrays in the order in which a recipe takes them."""
        yield from (self.ids, self.positions, self.labels, self.segments)

    @property
    def rows(self) -> int:
        """How many labels count."""
        return int(np.count_nonzero(self.labels != IGNORED))

    @property
    def tokens(self) -> int:
        """How many tokens are read."""
        return len(self.ids)

    @property
    def examples(self) -> int:
        """How many examples there are."""
        return int(np.count_nonzero(self.segments == np.arange(len(self.segments))))
