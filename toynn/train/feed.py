"""Draw batches from a source, and keep the position in it.

A source is an iterator. To resume, it needs a ``state`` of JSON values: setting it again gives the
same batches. A source may end; a step then uses the micro-batches that it has. That is why a feed
looks one batch ahead.
"""

from collections.abc import Callable, Iterable, Iterator, Sized
from itertools import islice
from typing import Any

from toynn.data.batch import IGNORED, Batch
from toynn.errors import CheckpointError, DataError

MAX_EMPTY_BATCHES = 1000  # in a row: more is a fault of the data, not chance


def as_batch(batch: Any) -> Batch:
    """Return a batch or any object with ``rows``; convert tuples and mappings to batches.

    Raises TypeError for any other object.
    """
    rows: Batch = batch if hasattr(batch, "rows") else Batch.of(batch)
    return rows


class Feed:
    """What a run reads: batches to train on, and batches to evaluate on.

    Batches without a label with loss are skipped; at most ``limit`` batches are drawn. An update
    has ``per_update`` of them. ``check`` raises an error if a mapped file has changed.
    """

    def __init__(
        self,
        source: Iterator[Batch],
        limit: int | None = None,
        per_update: int = 1,
        valid: Iterable[Batch] = (),
        check: Callable[[], object] = lambda: None,
    ) -> None:
        self._source, self._limit = source, limit
        self.per_update, self.valid, self.check = per_update, valid, check
        self._drawn, self.empty = 0, 0  # batches drawn, and batches without a label with loss
        self._ahead: Batch | None = None
        self._state: dict[str, Any] | None = None  # before the batch ahead was drawn

    def ended(self) -> bool:
        """Return whether no batch is left. Raises DataError after too many batches without loss."""
        if self._ahead is None:
            state, self._ahead = self.state, self._draw()
            self._state = None if self._ahead is None else state
        return self._ahead is None

    def first(self) -> Batch | None:
        """Return the next batch without taking it; None at the end.

        Raises DataError as ``ended`` does.
        """
        return None if self.ended() else self._ahead

    def __next__(self) -> Batch:
        if self.ended():
            raise StopIteration
        batch, self._ahead, self._state = self._ahead, None, None
        assert batch is not None
        return batch

    def turns(self, ranks: int) -> Iterator[tuple[int, list[Batch]]]:
        """Yield the validation batches, one for each rank at a time, after how many of them."""
        done, rest = 0, iter(self.valid)
        while batches := [as_batch(batch) for batch in islice(rest, ranks)]:
            yield done, batches
            done += len(batches)

    @property
    def valid_batches(self) -> int:
        """The number of validation batches; 0 if it is unknown."""
        return len(self.valid) if isinstance(self.valid, Sized) else 0

    def _draw(self) -> Batch | None:
        """Return the next batch with a label with loss."""
        for _ in range(MAX_EMPTY_BATCHES):
            if self._limit is not None and self._drawn >= self._limit:
                return None
            batch = next(self._source, None)
            if batch is None:
                return None
            batch = as_batch(batch)
            self._drawn += 1
            if batch.rows:
                return batch
            self.empty += 1
        raise DataError(f"{MAX_EMPTY_BATCHES} batches without loss: all their labels are {IGNORED}")

    @property
    def state(self) -> dict[str, Any]:
        """The position before the next batch; its source is None for a source without state.

        Setting it raises CheckpointError if the source has no state.
        """
        if self._state is not None:
            return self._state
        source = getattr(self._source, "state", None)
        return {"drawn": self._drawn, "empty": self.empty, "source": source}

    @state.setter
    def state(self, state: dict[str, Any]) -> None:
        if state["source"] is None or not hasattr(self._source, "state"):
            raise CheckpointError(
                "the data cannot be resumed: a batch source needs a `state` that can be set again"
            )
        self._source.state = state["source"]
        self._drawn, self.empty = state["drawn"], state["empty"]
        self._ahead = self._state = None


class Cycle:
    """The batches of a list, again and again. Raises DataError for an empty one."""

    def __init__(self, batches: list[Batch]) -> None:
        if not batches:
            raise DataError("expected at least one batch to train on; got none")
        self._batches, self._next = batches, 0
        self.per_epoch, self.examples = float(len(batches)), len(batches)

    def __iter__(self) -> "Cycle":
        return self

    def __next__(self) -> Batch:
        batch = self._batches[self._next % len(self._batches)]
        self._next += 1
        return batch

    @property
    def state(self) -> dict[str, Any]:
        """The number of batches drawn."""
        return {"next": self._next}

    @state.setter
    def state(self, state: dict[str, Any]) -> None:
        self._next = state["next"]
