"""Examples of different lengths, and batches of them.

An example of n tokens has n - 1 labels: each token's label is the token that follows. Labels
without loss (prompts) are IGNORED. A batch holds its examples one after the other, as segments: no
example sees another, and there is no padding.
"""

from array import array
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from toynn.data.batch import IGNORED, Batch
from toynn.data.bounds import FEW
from toynn.errors import DataError
from toynn.system.printing import counted


class Example(NamedTuple):
    """The tokens that a model reads, and the label of each: two int32 arrays (n,)."""

    ids: NDArray[np.int32]
    labels: NDArray[np.int32]

    @classmethod
    def completed(cls, prompt: Sequence[int], tokens: Sequence[int]) -> Self:
        """Return a prompt with its completion, which has loss."""
        ids = np.array([*prompt, *tokens], np.int32)
        labels = ids[1:].copy()
        labels[: len(prompt) - 1] = IGNORED
        return cls(ids[:-1], labels)

    @property
    def prompt(self) -> list[int]:
        """The tokens before its last completion: that of the last run of labels with loss."""
        learned = np.flatnonzero(self.labels != IGNORED)
        first = learned[np.diff(learned, prepend=-2) > 1][-1]
        return [int(id) for id in self.ids[: first + 1]]


class Columns(NamedTuple):
    """Examples as three arrays, which may be stored on disk."""

    ids: Any  # int32 (n,): the tokens of all examples, one after the other
    learned: Any  # uint8 (n,): 1 for a token with loss
    begins: Any  # int64: where each example begins, and where the last one ends


class Examples:
    """Many examples in a few arrays: a gigabyte of text has millions of examples.

    Parameters
    ----------
    columns
        Where to store examples, by default in memory. ``of`` takes columns that are already filled.
    """

    def __init__(self, seq: int, *, keep_end: bool = False, columns: Columns | None = None) -> None:
        #: the largest number of tokens that an example reads
        self.seq = seq
        #: whether an example that is too long loses its beginning instead of its end
        self.keep_end = keep_end
        #: how many of the added examples were cut, and how many dropped
        self.cut, self.dropped = 0, 0
        self._columns = columns or Columns(array("i"), bytearray(), array("q"))
        self._order: NDArray[np.int64] | None = None  # the examples in use; None: all, in order
        self._end = self._count = 0
        self._added: int | None = 0  # labels with loss, counted while adding; None: count
        if columns is None:
            self._columns.begins.append(0)

    @classmethod
    def of(cls, columns: Columns, seq: int, *, keep_end: bool = False) -> Self:
        """Return the examples in filled columns."""
        examples = cls(seq, keep_end=keep_end, columns=columns)
        examples._count, examples._added = len(columns.begins) - 1, None
        return examples

    def append(self, parts: Iterable[tuple[Sequence[int], bool]]) -> None:
        """Add an example made of parts: token ids, and whether they have loss.

        The example is cut to seq + 1 tokens, and dropped if no token with loss is left.
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
        """The number of labels with loss; may read all examples."""
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

    @property
    def prompted(self) -> bool:
        """Whether every example begins with a prompt: with a token without loss."""
        begins = np.array(self._columns.begins, np.int64)[:-1]
        begins = begins if self._order is None else begins[self._order]
        return not np.asarray(self._columns.learned)[begins].any()

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
        """Return these examples as a batch with room for ``room`` tokens."""
        chosen = np.fromiter(indices, np.int64)
        batch = joined((self[index] for index in chosen.tolist()), room)
        begins = self._columns.begins
        used = chosen if self._order is None else self._order[chosen]
        spans = [np.arange(begins[at] + 1, begins[at + 1]) for at in used.tolist()]
        batch.origin = np.concatenate(spans)
        return batch

    def pick(self, indices: Iterable[int]) -> "Examples":
        """Return these examples, in this order, without copying them."""
        picked = Examples.of(self._columns, self.seq, keep_end=self.keep_end)
        order = np.fromiter(indices, np.int64)
        picked._order = order if self._order is None else self._order[order]
        return picked


class Drawn(Protocol):
    """What batches are drawn from: examples, or texts of at most ``seq`` tokens."""

    @property
    def seq(self) -> int:
        """The most tokens of one."""

    def __len__(self) -> int:
        """Return how many there are."""

    def batch(self, indices: Iterable[int], room: int) -> Batch:
        """Return these as a batch."""


class ShuffledExamples(Iterator[Batch]):
    """Endless training batches: every example once an epoch, in a new random order."""

    def __init__(self, examples: Drawn, batch: int, seed: int) -> None:
        self._examples, self._batch = examples, batch
        self._seed, self._drawn = seed, 0
        self._epoch, self._order = -1, np.empty(0, np.int64)
        self.examples = len(examples)
        #: batches in an epoch
        self.per_epoch = len(examples) / batch

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
        """The position: set it again, with the same examples, and the same batches follow."""
        return {"seed": self._seed, "drawn": self._drawn}

    @state.setter
    def state(self, state: dict[str, Any]) -> None:
        self._seed, self._drawn, self._epoch = state["seed"], state["drawn"], -1


class Parted(Protocol):
    """Data that can be split: examples, or groups of examples."""

    def __len__(self) -> int:
        """Return how many there are."""

    def pick(self, indices: list[int], /) -> Self:
        """Return these items, in this order."""


P = TypeVar("P", bound=Parted)


def held_out(
    count: int, seed: int, holdout: float | None = None, where: str | Path = "data"
) -> tuple[list[int], list[int]]:
    """Split the numbers 0..count-1 into those to train on and those to hold out, both ascending.

    ``holdout``: see ReadOptions. Raises DataError if no example is left to train on.
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
    """Return how many of ``count`` items to hold out: 0, or at least ``least``.

    ``holdout`` is a share if below 1, else a number; None means a tenth.
    """
    if holdout is None:
        return max(count // 10, least)
    share = round(count * holdout) if holdout < 1 else int(holdout)
    return max(share, least) if holdout else 0


def split_off(
    path: Path, data: P, seed: int, file: str, holdout: float | None = None
) -> tuple[P, P, list[str]]:
    """Return the training part, the held-out part, and notes for the user.

    ``file`` is the name of the missing validation file. Raises DataError if no example is left to
    train on.
    """
    count = len(data)
    kept, held = (data.pick(part) for part in held_out(count, seed, holdout, path))
    said = f"{len(held):,} of {count:,} examples of the training data became the validation part"
    if len(held):
        return kept, held, [f"no {file}: {said}"]
    few = f"no {file}, and {counted(count, 'example')}: nothing is held out"
    return kept, held, [f"{few} (--valid FILE or --holdout N does)"] if holdout is None else []


def check_not_asked(path: Path, holdout: float | None) -> None:
    """Raise DataError if the user asks for a holdout from data with a validation part."""
    if holdout:
        raise DataError(
            f"{path}: it has a validation part; got --holdout {holdout:g} as well: leave that "
            "out, or name the training file alone"
        )


def joined(examples: Iterable[Example], room: int) -> Batch:
    """Return a batch of examples, one after the other; positions restart in each."""
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
