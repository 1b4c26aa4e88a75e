"""Batches from a source, and the position of training in it.

A source is an iterator. One that training can resume from has a ``state``, plain values that JSON
holds: once it is set again, the same batches follow. A source may end; a step that gathers
micro-batches then ends with those that there are, which is why a feed looks one batch ahead.
"""

from collections.abc import Iterator
from typing import Any

from toynn.data.batch import IGNORED, Batch
from toynn.errors import CheckpointError, DataError

__all__ = ["Cycle", "Feed", "made"]

MAX_EMPTY_BATCHES = 1000  # in a row: by then the data, not chance, is to blame


def made(batch: Any) -> Batch:
    """Return a batch, or what else says how many rows count; of tuples and mappings, a batch.

    Raises TypeError for what is none.
    """
    known: Batch = batch if hasattr(batch, "rows") else Batch.of(batch)
    return known


class Feed:
    """The batches of a source in which a label counts, at most ``limit`` of all batches."""

    def __init__(self, source: Iterator[Batch], limit: int | None = None) -> None:
        self._source, self._limit = source, limit
        self._drawn, self.empty = 0, 0  # batches drawn, and batches without a label with loss
        self._ahead: Batch | None = None
        self._state: dict[str, Any] | None = None  # before the batch ahead was drawn

    def ended(self) -> bool:
        """Whether no batch is left. Raises DataError where no label counts in very many."""
        if self._ahead is None:
            state, self._ahead = self.state, self._draw()
            self._state = None if self._ahead is None else state
        return self._ahead is None

    def first(self) -> Batch | None:
        """Return the next batch, which stays the next one; None where none is left.

        Raises DataError as ``ended`` does.
        """
        return None if self.ended() else self._ahead

    def __next__(self) -> Batch:
        if self.ended():
            raise StopIteration
        batch, self._ahead, self._state = self._ahead, None, None
        assert batch is not None
        return batch

    def _draw(self) -> Batch | None:
        """Return the next batch in which a label counts."""
        for _ in range(MAX_EMPTY_BATCHES):
            if self._limit is not None and self._drawn >= self._limit:
                return None
            batch = next(self._source, None)
            if batch is None:
                return None
            batch = made(batch)
            self._drawn += 1
            if batch.rows:
                return batch
            self.empty += 1
        raise DataError(f"no label counts in any of {MAX_EMPTY_BATCHES} batches: all are {IGNORED}")

    @property
    def state(self) -> dict[str, Any]:
        """Where the next batch comes from; None in place of the source's where it has no state.

        Raises CheckpointError if it is set and the source has none.
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
        """How many were drawn."""
        return {"next": self._next}

    @state.setter
    def state(self, state: dict[str, Any]) -> None:
        self._next = state["next"]
