"""Mix several sources of data in one run, each with its share of the rows.

Each row of a batch comes from one source: examples packed into --seq tokens, or a window of text.
Weights add up to 1. After n rows, a source of weight w has given n w rows, off by less than one.
So the choice of the next source is not random. Within a source the order is random, as in a run
with a single source.

An epoch has as many rows as all sources together. Without given weights, each source has its share
of these rows, and an epoch has every row once. With given weights, a source that is not used up
continues in the next epoch, and one that is used up starts again: see `passes`.

Each source has its own validation part and validation loss, `val_loss/<name>`.

Source: Tijdeman 1980, The chairman assignment problem, doi:10.1016/0012-365X(80)90269-1: no source
of k is more than 1 - 1 / (2 k - 2) rows off.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from toynn.data.batch import Batch
from toynn.data.documents import Documents
from toynn.data.examples import Examples
from toynn.data.jsonl import Dataset
from toynn.data.preference import PreferenceData
from toynn.errors import ConfigError


@dataclass(frozen=True)
class Mixture:
    """Several sources of data, mixed in every batch. See ``of``."""

    names: tuple[str, ...]
    sources: tuple[Dataset | PreferenceData, ...]
    weights: tuple[float, ...]  # which add up to 1
    given: bool  # whether the user gave them; else they are the sources' sizes

    @classmethod
    def of(
        cls,
        sources: Mapping[str, Dataset | PreferenceData],
        weights: Sequence[float] | None = None,
    ) -> "Mixture":
        """Mix sources, by their names: texts and examples, or preferences.

        ``weights`` are shares of the rows, and need not add up to 1; by default a source's share is
        its size. Windows of a text become as long as rows of examples.

        Raises ConfigError for fewer than two sources, and unless each source has one weight above
        0. Preferences can be mixed only with preferences of the same kind and row length; for
        others it is raised too.
        """
        if len(sources) < 2:
            raise ConfigError(f"a mixture needs two sources or more; got {len(sources)}")
        if weights is not None:
            if len(weights) != len(sources):
                raise ConfigError(f"expected {len(sources)} weights; got {len(weights)}")
            if not all(0 < weight < float("inf") for weight in weights):
                raise ConfigError(f"weights must be above 0; got {', '.join(map(str, weights))}")
        alike = _alike(list(sources.values()))
        rows = [source.batches(1, 0).per_epoch for source in alike]
        shares = rows if weights is None else weights
        total = sum(shares)
        whole = tuple(share / total for share in shares)
        return cls(tuple(sources), alike, whole, weights is not None)

    @property
    def seq(self) -> int:
        """The number of tokens in a row."""
        return max(source.seq for source in self.sources)

    @property
    def chats(self) -> bool:
        """Whether any source has conversations."""
        return any(source.chats for source in self.sources)

    @property
    def packed(self) -> bool:
        """Whether batches have segments."""
        return self.sources[0].packed

    @cached_property
    def rows(self) -> tuple[float, ...]:
        """The number of rows of each source."""
        return tuple(source.batches(1, 0).per_epoch for source in self.sources)

    @property
    def passes(self) -> tuple[float, ...]:
        """How many times an epoch goes through each source."""
        total = sum(self.rows)
        return tuple(w * total / rows for w, rows in zip(self.weights, self.rows, strict=True))

    @property
    def notes(self) -> list[str]:
        """Lines for the user: the sources' notes, and how they are mixed."""
        lines = [note for source in self.sources for note in source.notes]
        for name, share, times in zip(self.names, self.weights, self.passes, strict=True):
            lines.append(f"{name}: {share:.1%} of the rows; an epoch goes through it {times:.2f} x")
        lines.append(f"an epoch is {sum(self.rows):,.0f} rows, as many as all sources have")
        return lines

    def check_unchanged(self) -> None:
        """Raise DataError if a mapped file has changed since it was opened."""
        for source in self.sources:
            source.check_unchanged()

    def rows_for(self, t_batch: int, t_seq: int) -> int:
        """Return how many rows a batch of t_batch x t_seq tokens has."""
        return self.sources[0].rows_for(t_batch, t_seq)

    def batches(self, batch: int, seed: int) -> "MixedBatches":
        """Return endless training batches, with a `state` to resume from."""
        return MixedBatches(self, batch, seed)

    def valid_batches(self, batch: int, max_batches: int) -> list[Batch]:
        """Return the same validation batches each time, each source by its share."""
        return [
            replace(part, source=name)
            for name, source, share in zip(self.names, self.sources, self.weights, strict=True)
            for part in source.valid_batches(batch, max(1, round(share * max_batches)))
        ]

    def test_batches(self, batch: int) -> list[Batch]:
        """Return the batches of all test parts."""
        return [part for source in self.sources for part in source.test_batches(batch)]


class MixedBatches(Iterator[Batch]):
    """Endless training batches of ``batch`` rows; ``next_source`` chooses each row's source."""

    def __init__(self, data: Mixture, batch: int, seed: int) -> None:
        seeds = np.random.SeedSequence(seed).generate_state(len(data.sources))
        self._sources = [
            source.batches(1, int(number))
            for source, number in zip(data.sources, seeds, strict=True)
        ]
        self._weights, self._batch = data.weights, batch
        self._drawn = [0] * len(self._sources)  # rows drawn from each
        self.examples = sum(getattr(source, "examples", 1) for source in self._sources)
        #: batches in an epoch
        self.per_epoch = sum(data.rows) / batch

    def __next__(self) -> Batch:
        rows: list[Batch] = []
        for _ in range(self._batch):
            source = next_source(self._weights, self._drawn)
            self._drawn[source] += 1
            rows.append(next(self._sources[source]))
        return _joined(rows)

    @property
    def state(self) -> dict[str, Any]:
        """The position: set it again, with the same data, and the same batches follow."""
        return {"drawn": list(self._drawn), "sources": [each.state for each in self._sources]}

    @state.setter
    def state(self, state: dict[str, Any]) -> None:
        self._drawn = list(state["drawn"])
        for source, position in zip(self._sources, state["sources"], strict=True):
            source.state = position


def next_source(weights: Sequence[float], drawn: Sequence[int]) -> int:
    """Return the index of the next source, given the number of rows drawn from each.

    Among the sources that may give one more row, it is the one with the earliest deadline.
    """
    slack = 1 / (2 * len(weights) - 2)
    n = sum(drawn) + 1
    # Rounding must not exclude all sources: the one that is furthest behind is always allowed.
    most = max(weight * n - count for weight, count in zip(weights, drawn, strict=True))
    may = [k for k, w in enumerate(weights) if w * n - drawn[k] >= min(slack, most)]
    return min(may, key=lambda k: (drawn[k] + 1 - slack) / weights[k])


def _alike(
    sources: Sequence[Dataset | PreferenceData],
) -> tuple[Dataset | PreferenceData, ...]:
    """Return the sources with rows of one kind and one length. Raises ConfigError."""
    kinds = {type(source) for source in sources}
    if len(kinds) > 1:
        raise ConfigError("preferences can be mixed only with preferences; got other data too")
    paired = [each.train for each in sources if isinstance(each, PreferenceData)]
    if len({part.wanted is None for part in paired}) > 1:
        raise ConfigError(
            "expected sources that are all pairs, or all labelled completions; got both"
        )
    if len(rooms := {part.seq for part in paired}) > 1:
        raise ConfigError(
            f"to mix preferences, read them all with the same seq; got rows of "
            f"{', '.join(map(str, sorted(rooms)))} tokens"
        )
    seq = max(source.seq for source in sources)
    packed = any(source.packed for source in sources)
    alike = []
    for source in sources:
        if isinstance(source, Dataset):
            for part in (source.train, source.valid, source.test):
                if isinstance(part, Examples):
                    part.seq = seq
            if packed and not source.packed:
                parts = [_document(part) for part in (source.train, source.valid)]
                source = replace(source, train=parts[0], valid=parts[1])
            source = replace(source, seq=seq)
        alike.append(source)
    return tuple(alike)


def _document(ids: Any) -> Documents:
    """Return a text as one document, so that its windows are segments."""
    return Documents(ids, np.zeros(1, np.int64))


def _joined(rows: Sequence[Batch]) -> Batch:
    """Concatenate rows into one batch."""
    first = rows[0]
    arrays: dict[str, Any] = {
        name: np.concatenate([getattr(row, name) for row in rows])
        for name in ("inputs", "positions", "labels", "wanted")
        if getattr(first, name) is not None
    }
    if first.segments is not None:
        starts = np.cumsum([0, *(row.tokens for row in rows[:-1])])
        moved = [row.segments + start for row, start in zip(rows, starts, strict=True)]
        arrays["segments"] = np.concatenate(moved).astype(np.int32)
    if first.bounds is not None:
        bounds = [np.zeros(1, np.int32)]
        for row in rows:
            bounds.append(row.bounds[1:] + bounds[-1][-1])
        arrays["bounds"] = np.concatenate(bounds).astype(np.int32)
    return Batch(**arrays, room=sum(row.room for row in rows))
