"""A packed batch: examples one behind another, checked, and as long as a tape has room for."""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from toynn.errors import ShapeError
from toynn.numerics import checks
from toynn.numerics.checks import IGNORED

__all__ = ["Packed"]

Integers = NDArray[Any]


class Packed(NamedTuple):
    """Ids, positions, labels and segments (n,) of examples that do not see each other."""

    ids: Integers
    positions: Integers
    labels: Integers
    segments: Integers

    @classmethod
    def of(
        cls,
        ids: Integers,
        positions: ArrayLike | None,
        labels: Integers,
        segments: ArrayLike | None,
        t_seq: int,
        context: int,
    ) -> "Packed":
        """Return a batch; without ``segments`` it is whole sequences of ``t_seq`` tokens.

        Raises ShapeError or LabelError where segments are none, or positions do not fit them.
        """
        size, rows = ids.shape, np.arange(ids.size)
        if labels.ndim == 2:
            raise ShapeError(f"segments: labels must be integers {size}; got {labels.shape}")
        if segments is None:
            first = rows - rows % t_seq
            given = rows % t_seq if positions is None else np.asarray(positions)
            return cls(ids, given, labels, first)
        first = checks.converted("segments", segments, size, "i32")
        checks.segments_within(ids.size)("segments", first)
        if ids.size > 1 and (first == rows).all():
            raise ShapeError(
                f"segments: every one of {ids.size} rows begins a segment, so that no token sees "
                "another; give the first row of each token's example: 0 0 0 3 3 ..."
            )
        longest = int((rows - first).max()) + 1
        if longest > context:
            row = int(np.argmax(rows - first))
            raise ShapeError(
                f"segments: the example that begins at row {first[row]} has {longest} tokens; the "
                f"context is {context}: cut it"
            )
        if positions is not None:
            found = checks.converted("positions", positions, size, "i32")
            if (found != rows - first).any():
                row = int(np.argmax(found != rows - first))
                raise ShapeError(
                    f"positions: row {row} is {found[row]}; must be {row - first[row]}: positions "
                    f"count from 0 in each segment, and this one begins at row {first[row]}"
                )
        return cls(ids, rows - first, checks.converted("labels", labels, size, "i32"), first)

    def padded(self, room: int) -> "Packed":
        """Return as many rows as a tape has room for; no kernel looks at those behind."""
        more = room - self.ids.size
        zeros = np.zeros(more, np.int32)
        return Packed(
            np.append(self.ids, zeros),
            np.append(self.positions, zeros),
            np.append(self.labels, zeros + IGNORED),
            np.append(self.segments, np.arange(self.ids.size, room)),
        )
