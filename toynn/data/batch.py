"""The batch: one object from the data to the engine, for every recipe."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from toynn.numerics.checks import IGNORED

__all__ = ["IGNORED", "Batch"]


@dataclass(eq=False)
class Batch:
    """One batch, not to be changed: token sequences, packed examples, preferences, or pictures.

    The engine checks the arrays. ``Batch.of`` makes one of arrays in the order of the fields.

    Attributes
    ----------
    inputs
        Token ids, int (n,): whole sequences one after the other, or packed examples. Of pictures
        their pixels or patches: see ``ViTEngine``.
    positions
        The position of each token, int (n,); None: 0..T-1 in each sequence. Of pictures, which
        token the head reads of each (upstream: ``cls_idx``); None: the class token.
    labels
        Int, one for each token or picture, -100 where it does not count; or dense floats, a row of
        classes for each.
    segments
        Of packed examples: of each token the number of the first token of its example, int (n,).
    bounds
        Of preferences: where, among the rows whose label counts, each prompt and each completion
        begins and the last one ends, int (2 S + 1,). See ``toynn.engines.preference``.
    wanted
        Of KTO: 1 for each completion that is wanted, 0 for the others, int (S,).
    room
        The tokens that a packed batch has room for: B*T of B rows, filled as well as may be.
    source
        The name of the source, of a validation batch out of several.
    """

    inputs: Any
    positions: Any
    labels: Any
    segments: Any = None
    bounds: Any = None
    wanted: Any = None
    room: int = field(default=0, kw_only=True)
    source: str | None = field(default=None, kw_only=True)

    @classmethod
    def of(cls, batch: "Batch | ArrayLike | Iterable[Any]", *arrays: ArrayLike | None) -> "Batch":
        """Return a batch as it is; or one of arrays, in the order of the fields, or in a tuple."""
        if isinstance(batch, Batch):
            return batch
        given: Any = (batch, *arrays) if arrays else batch
        return cls(*(None if each is None else np.asarray(each) for each in given))

    def __iter__(self) -> Iterator[Any]:
        """Yield inputs, positions, labels; and segments, bounds, wanted, as far as there are."""
        yield from (self.inputs, self.positions, self.labels)
        more = (self.segments, self.bounds, self.wanted)
        yield from (array for array in more if array is not None)

    @cached_property
    def rows(self) -> int:
        """How many labels count; of preferences, how many pairs or single completions there are."""
        if self.bounds is not None:
            return self.examples // 2 if self.wanted is None else self.examples
        labels = np.asarray(self.labels)
        return int(np.count_nonzero(labels.any(axis=1) if labels.ndim == 2 else labels != IGNORED))

    @property
    def tokens(self) -> int:
        """How many tokens are read."""
        return len(self.inputs)

    @property
    def examples(self) -> int:
        """How many examples a packed batch has; of preferences, how many sequences."""
        if self.bounds is not None:
            return len(self.bounds) // 2
        return int(np.count_nonzero(self.segments == np.arange(self.tokens)))
