"""What a training step is fed."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

__all__ = ["IGNORED", "Batch"]

IGNORED = -100  # a label that does not count, as in PyTorch and toynn.checks


class Batch(NamedTuple):
    """B windows of T tokens, flattened: three int32 arrays (B*T,)."""

    ids: NDArray[np.int32]
    positions: NDArray[np.int32]
    labels: NDArray[np.int32]

    @property
    def rows(self) -> int:
        """How many labels count."""
        return int(np.count_nonzero(self.labels != IGNORED))
