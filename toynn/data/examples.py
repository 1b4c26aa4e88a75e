"""Examples of their own lengths, and batches of them.

An example of n tokens asks n - 1 questions: at each token, which one follows? Those whose answer is
not `learned` (a prompt's) get the label IGNORED. In a batch they stand one behind another, in
segments: so no example sees another, and there is nothing else but examples to compute.
"""

from array import array
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from toynn.data.batch import IGNORED, PackedBatch

__all__ = ["Example", "Examples", "ShuffledExamples", "examples_in_order", "joined"]


class Example(NamedTuple):
    """What a model reads, and what it should say after each token: two int32 arrays (n,)."""

    ids: NDArray[np.int32]
    labels: NDArray[np.int32]


class Examples:
    """Many examples, in a few arrays: a gigabyte of text has millions of them."""

    def __init__(self, seq: int, *, keep_end: bool = False) -> None:
        #: the most tokens that an example may have to read
        self.seq = seq
        #: whether what is longer loses its beginning, instead of its end
        self.keep_end = keep_end
        #: how many were cut, how many dropped, and how many labels count
        self.cut, self.dropped, self.labels = 0, 0, 0
        self._ids, self._learned = array("i"), bytearray()
        self._begins = array("q", [0])  # and where the last one ends

    def append(self, parts: Iterable[tuple[Sequence[int], bool]]) -> None:
        """Add an example made of parts: ids, and whether they are to be learned.

        Cut what is longer than seq + 1 tokens; drop what then has nothing to learn.
        """
        ids: list[int] = []
        learned = bytearray()
        for some, learn in parts:
            ids += some
            learned += bytes((learn,)) * len(some)
        room = self.seq + 1
        begin = max(len(ids) - room, 0) if self.keep_end else 0
        labels = learned.count(1, begin + 1, begin + room)
        self.cut += len(ids) > room
        self.dropped += labels == 0
        if labels:
            self.labels += labels
            self._ids.extend(ids[begin : begin + room])
            self._learned += learned[begin : begin + room]
            self._begins.append(len(self._ids))

    @property
    def lengths(self) -> NDArray[np.int64]:
        """The tokens that each of the examples has to read."""
        begins = np.array(self._begins, np.int64)
        return begins[1:] - begins[:-1] - 1

    @property
    def longest(self) -> int:
        """The most tokens that one of the examples has to read."""
        return int(self.lengths.max(initial=0))

    def __len__(self) -> int:
        return len(self._begins) - 1

    def __getitem__(self, index: int) -> Example:
        if not 0 <= index < len(self):
            raise IndexError(f"expected an example of 0..{len(self) - 1}; got {index}")
        begin, end = self._begins[index], self._begins[index + 1]
        tokens = np.array(self._ids[begin:end], np.int32)
        learned = np.frombuffer(self._learned[begin + 1 : end], np.bool_)
        return Example(tokens[:-1], np.where(learned, tokens[1:], np.int32(IGNORED)))

    def pick(self, indices: Iterable[int]) -> "Examples":
        """Return these examples, in this order."""
        picked = Examples(self.seq, keep_end=self.keep_end)
        for index in indices:
            begin, end = self._begins[index], self._begins[index + 1]
            learned = self._learned[begin:end]
            picked._ids.extend(self._ids[begin:end])
            picked._learned += learned
            picked._begins.append(len(picked._ids))
            picked.labels += learned.count(1, 1)
        return picked


class ShuffledExamples:
    """Endless training batches: every example once in each epoch, in an order of its own."""

    def __init__(self, examples: Examples, batch: int, seed: int) -> None:
        self._examples, self._batch = examples, batch
        self._seed, self._drawn = seed, 0
        self._epoch, self._order = -1, np.empty(0, np.int64)
        #: batches that have every example once
        self.per_epoch = len(examples) / batch

    def __iter__(self) -> "ShuffledExamples":
        return self

    def __next__(self) -> PackedBatch:
        drawn = range(self._drawn, self._drawn + self._batch)
        self._drawn += self._batch
        room = self._batch * self._examples.seq
        return joined([self._examples[self._index(k)] for k in drawn], room)

    def _index(self, k: int) -> int:
        """Return the k-th example drawn since the beginning."""
        epoch, at = divmod(k, len(self._examples))
        if epoch != self._epoch:
            order = np.random.default_rng([self._seed, epoch]).permutation(len(self._examples))
            self._epoch, self._order = epoch, order
        return int(self._order[at])

    @property
    def state(self) -> dict[str, Any]:
        """Where it stands: set it again, with the same examples, and the same batches follow."""
        return {"seed": self._seed, "drawn": self._drawn}

    @state.setter
    def state(self, state: dict[str, Any]) -> None:
        self._seed, self._drawn, self._epoch = state["seed"], state["drawn"], -1


def examples_in_order(
    examples: Examples, batch: int, max_batches: int | None = None
) -> list[PackedBatch]:
    """All examples in batches, in order; at most max_batches, of examples spaced evenly."""
    count = len(examples)
    if max_batches is not None:
        count = min(count, batch * max_batches)
    chosen = [index * len(examples) // count for index in range(count)]
    return [
        joined([examples[index] for index in chosen[first : first + batch]], batch * examples.seq)
        for first in range(0, count, batch)
    ]


def joined(examples: Iterable[Example], room: int) -> PackedBatch:
    """Return a batch of examples, one behind another, with positions of their own."""
    parts = list(examples)
    lengths = [len(part.ids) for part in parts]
    starts = np.repeat(np.cumsum([0, *lengths[:-1]]), lengths).astype(np.int32)
    rows = np.arange(len(starts), dtype=np.int32)
    return PackedBatch(
        np.concatenate([part.ids for part in parts]),
        rows - starts,
        np.concatenate([part.labels for part in parts]),
        starts,
        room,
    )
