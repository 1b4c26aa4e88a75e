"""Examples of their own lengths, and batches of them.

An example of n tokens has n - 1 labels: the token that follows each. Labels without loss (prompts)
are IGNORED. In a batch examples stand one behind another, in segments: no example sees another,
and nothing but examples is computed.
"""

from array import array
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from toynn.data.batch import IGNORED, Batch
from toynn.errors import DataError
from toynn.system.printing import counted

__all__ = [
    "FEW",
    "Columns",
    "Example",
    "Examples",
    "Growing",
    "ShuffledExamples",
    "check_not_asked",
    "held_out",
    "joined",
    "split_off",
    "tail_length",
]

#: Of fewer examples none are held out, unless somebody asks for some.
FEW = 20


class Example(NamedTuple):
    """The tokens that a model reads, and the label of each: two int32 arrays (n,)."""

    ids: NDArray[np.int32]
    labels: NDArray[np.int32]


class Growing(Protocol):
    """Numbers that grow at the end."""

    def append(self, number: int, /) -> object:
        """Add one."""

    def extend(self, numbers: Any, /) -> object:
        """Add some."""


class Columns(NamedTuple):
    """Examples in three rows of numbers, which may be stored on the disk."""

    ids: Any  # int32 (n,): all tokens, one example behind another
    learned: Any  # uint8 (n,): 1 for a token with loss
    begins: Any  # int64: where each example begins, and where the last one ends


class Examples:
    """Many examples, in a few arrays: a gigabyte of text has millions of them.

    Parameters
    ----------
    columns
        Where examples are stored, by default in memory. With ``of``, where they are stored already.
    """

    def __init__(self, seq: int, *, keep_end: bool = False, columns: Columns | None = None) -> None:
        #: the largest number of tokens that an example reads
        self.seq = seq
        #: whether what is longer loses its beginning, instead of its end
        self.keep_end = keep_end
        #: how many of the added examples were cut, and how many dropped
        self.cut, self.dropped = 0, 0
        self._columns = columns or Columns(array("i"), bytearray(), array("q"))
        self._order: NDArray[np.int64] | None = None  # of those that are here; None: all of them
        self._end = self._count = 0
        self._added: int | None = 0  # labels of those that were added, where that are all of them
        if columns is None:
            self._columns.begins.append(0)

    @classmethod
    def of(cls, columns: Columns, seq: int, *, keep_end: bool = False) -> Self:
        """Return examples that are in such columns."""
        examples = cls(seq, keep_end=keep_end, columns=columns)
        examples._count, examples._added = len(columns.begins) - 1, None
        return examples

    def append(self, parts: Iterable[tuple[Sequence[int], bool]]) -> None:
        """Add an example made of parts: ids, and whether they have loss.

        It is cut to seq + 1 tokens, and dropped if none of them has loss then.
        """
        ids: list[int] = []
        trained = bytearray()
        for some, learn in parts:
            ids += some
            trained += bytes((learn,)) * len(some)
        room = self.seq + 1
        begin = max(len(ids) - room, 0) if self.keep_end else 0
        labels = trained.count(1, begin + 1, begin + room)
        self.cut += len(ids) > room
        self.dropped += labels == 0
        if labels:
            self._added = None if self._added is None else self._added + labels
            self._columns.ids.extend(ids[begin : begin + room])
            self._columns.learned.extend(trained[begin : begin + room])
            self._end += min(len(ids), room)
            self._columns.begins.append(self._end)
            self._count += 1

    @property
    def lengths(self) -> NDArray[np.int64]:
        """The number of tokens that each example reads."""
        begins = np.array(self._columns.begins, np.int64)
        lengths = begins[1:] - begins[:-1] - 1
        return lengths if self._order is None else lengths[self._order]

    @property
    def labels(self) -> int:
        """The number of labels with loss; all examples are looked at."""
        if self._added is not None:
            return self._added
        begins, order = self._columns.begins, self._order
        spans = range(self._count) if order is None else order
        trained = self._columns.learned
        return sum(
            int(np.count_nonzero(np.asarray(trained[begins[at] + 1 : begins[at + 1]])))
            for at in spans
        )

    @property
    def longest(self) -> int:
        """The number of tokens that the longest example reads."""
        return int(self.lengths.max(initial=0))

    def __len__(self) -> int:
        return self._count if self._order is None else len(self._order)

    def __getitem__(self, index: int) -> Example:
        if not 0 <= index < len(self):
            raise IndexError(f"expected an example of 0..{len(self) - 1}; got {index}")
        at = index if self._order is None else int(self._order[index])
        begin, end = self._columns.begins[at], self._columns.begins[at + 1]
        tokens = np.array(self._columns.ids[begin:end], np.int32)
        trained = np.array(self._columns.learned[begin + 1 : end], np.bool_)
        return Example(tokens[:-1], np.where(trained, tokens[1:], np.int32(IGNORED)))

    def batch(self, indices: Iterable[int], room: int) -> Batch:
        """Return these examples as a batch with room for so many tokens."""
        return joined((self[index] for index in indices), room)

    def pick(self, indices: Iterable[int]) -> "Examples":
        """Return these examples, in this order; they stay where they are."""
        picked = Examples.of(self._columns, self.seq, keep_end=self.keep_end)
        order = np.fromiter(indices, np.int64)
        picked._order = order if self._order is None else self._order[order]
        return picked


class ShuffledExamples:
    """Endless training batches: every example once in each epoch, in an order of its own."""

    def __init__(self, examples: Examples, batch: int, seed: int) -> None:
        self._examples, self._batch = examples, batch
        self._seed, self._drawn = seed, 0
        self._epoch, self._order = -1, np.empty(0, np.int64)
        self.examples = len(examples)
        #: batches that have every example once
        self.per_epoch = len(examples) / batch

    def __iter__(self) -> "ShuffledExamples":
        return self

    def __next__(self) -> Batch:
        drawn = range(self._drawn, self._drawn + self._batch)
        self._drawn += self._batch
        room = self._batch * self._examples.seq
        return self._examples.batch(map(self._index, drawn), room)

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


class Parted(Protocol):
    """What can be parted: examples, or groups of them."""

    def __len__(self) -> int:
        """Return how many there are."""

    def pick(self, indices: list[int], /) -> Self:
        """Return these, in this order."""


P = TypeVar("P", bound=Parted)


def held_out(
    count: int, seed: int, holdout: float | None = None, where: str | Path = "data"
) -> tuple[list[int], list[int]]:
    """Return which of so many examples are trained on, and which are held out, each in order.

    ``holdout`` is that of ReadOptions. Raises DataError where none is left to train on.
    """
    tail = tail_length(count, holdout, least=1)
    if holdout is None and count < FEW:
        tail = 0
    if count and tail >= count:
        raise DataError(
            f"{where}: expected an example to train on and {tail:,} to hold out; got {count:,} in "
            "all: hold out fewer, or add examples"
        )
    order = np.random.default_rng(seed).permutation(count)
    return sorted(order[tail:].tolist()), sorted(order[:tail].tolist())


def tail_length(count: int, holdout: float | None, least: int) -> int:
    """Return how many of ``count`` items are held out: a tenth, a share below 1, or so many.

    That is 0, or at least ``least``.
    """
    if holdout is None:
        return max(count // 10, least)
    share = round(count * holdout) if holdout < 1 else int(holdout)
    return max(share, least) if holdout else 0


def split_off(
    path: Path, data: P, seed: int, file: str, holdout: float | None = None
) -> tuple[P, P, list[str]]:
    """Return the training part, the held-out part, and lines that say how many were held out.

    ``file`` is the name of the missing validation part. Raises DataError if no example is left.
    """
    count = len(data)
    kept, held = (data.pick(part) for part in held_out(count, seed, holdout, path))
    said = f"{len(held):,} of {count:,} examples of the training data became the validation part"
    if len(held):
        return kept, held, [f"no {file}: {said}"]
    few = f"no {file}, and {counted(count, 'example')}: nothing is held out"
    return kept, held, [f"{few} (--valid FILE or --holdout N does)"] if holdout is None else []


def check_not_asked(path: Path, holdout: float | None) -> None:
    """Raise DataError where some are to be held out of data that have a validation part."""
    if holdout:
        raise DataError(
            f"{path}: it has a validation part, and got a holdout of {holdout:g}: leave that out, "
            "or name the training file alone"
        )


def joined(examples: Iterable[Example], room: int) -> Batch:
    """Return a batch of examples, one behind another, with positions of their own."""
    parts = list(examples)
    lengths = [len(part.ids) for part in parts]
    starts = np.repeat(np.cumsum([0, *lengths[:-1]]), lengths).astype(np.int32)
    rows = np.arange(len(starts), dtype=np.int32)
    return Batch(
        np.concatenate([part.ids for part in parts]),
        rows - starts,
        np.concatenate([part.labels for part in parts]),
        starts,
        room=room,
    )
