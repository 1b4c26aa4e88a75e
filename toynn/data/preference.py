"""Read preferences from lines of JSON, with TRL's names, and pack them into batches.

    {"prompt": "...", "chosen": "...", "rejected": "..."}          which completion is better
    {"prompt": "...", "completion": "...", "label": true}          whether it is wanted (KTO)

Prompt, chosen and rejected may be lists of messages. Without a prompt, chosen and rejected are
whole conversations with a common beginning. Completions end with EOS; prompts have no loss.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from toynn.data._rows import meant, string_of
from toynn.data.batch import IGNORED, Batch
from toynn.data.examples import Example, Examples, check_not_asked, joined, split_off
from toynn.data.jsonl import VALID, parts_of
from toynn.data.packing import PackedExamples, in_rows, pack
from toynn.data.reader import (
    Contents,
    Encoder,
    Fields,
    Parts,
    Reader,
    ReadOptions,
    Talk,
    answers,
)
from toynn.data.splits import part_of
from toynn.data.store import Mapped
from toynn.errors import DataError
from toynn.system.printing import counted

PAIR, LABELLED = ("chosen", "rejected"), ("prompt", "completion", "label")


class Preferences:
    """Examples in groups: pairs (chosen, then rejected), or single ones, wanted or unwanted.

    With ``whole`` the prompt of a chosen example has loss too, as in ORPO.
    """

    def __init__(
        self, examples: Examples, wanted: Sequence[bool] | None, *, whole: bool = False
    ) -> None:
        self._examples, self._whole = examples, whole
        self.wanted = None if wanted is None else np.array(wanted, np.int32)
        self._of = 1 if wanted is not None else 2
        #: the most tokens of a group
        self.seq = examples.seq * self._of

    def __len__(self) -> int:
        return len(self._examples) // self._of

    @property
    def lengths(self) -> NDArray[np.int64]:
        """The number of tokens of each group."""
        lengths: NDArray[np.int64] = self._examples.lengths.reshape(-1, self._of).sum(axis=1)
        return lengths

    def pick(self, indices: Sequence[int]) -> "Preferences":
        """Return these groups, in this order."""
        members = [self._of * index + k for index in indices for k in range(self._of)]
        wanted = None if self.wanted is None else self.wanted[list(indices)].tolist()
        return Preferences(self._examples.pick(members), wanted, whole=self._whole)

    def example(self, index: int) -> Example:
        """Return the first example of a group."""
        return self._examples[self._of * index]

    def batch(self, indices: Sequence[int], room: int) -> Batch:
        """Return these groups as a batch."""
        members = [self._of * index + k for index in indices for k in range(self._of)]
        parts, bounds = [], [0]
        for k, member in enumerate(members):
            ids, labels = self._examples[member]
            counting = np.flatnonzero(labels != IGNORED)
            first, end = int(counting[0]), int(counting[-1]) + 1  # no loss after it
            ids, labels, before = ids[:end], labels[:end], 0
            if self._whole and self._of == 2 and k % 2 == 0:
                labels[:first], before = ids[1 : first + 1], first
            parts.append(Example(ids, labels))
            bounds += [bounds[-1] + before, bounds[-1] + before + len(counting)]
        wanted = None if self.wanted is None else self.wanted[list(indices)]
        return replace(joined(parts, room), bounds=np.array(bounds, np.int32), wanted=wanted)


@dataclass(frozen=True)
class PreferenceData:
    """Training and validation preferences, and notes for the user."""

    train: Preferences
    valid: Preferences
    seq: int
    notes: list[str]
    chats: bool = False
    test: None = None  # a test part is not read
    source: None = None  # only a long text has one
    packed: bool = True  # batches have segments
    mapped: Mapped = ()

    def check_unchanged(self) -> None:
        """Raise DataError if a mapped file has changed since it was opened."""
        for file in self.mapped:
            file.check()

    def rows_for(self, t_batch: int, t_seq: int) -> int:
        """Return how many rows a batch of t_batch x t_seq tokens has."""
        return max(1, t_batch * t_seq // self.train.seq)

    def batches(self, batch: int, seed: int) -> PackedExamples:
        """Return endless training batches, with a `state` to resume from."""
        return PackedExamples(self.train, batch, seed)

    def valid_batches(self, batch: int, max_batches: int) -> list[Batch]:
        """Return the same validation batches each time."""
        data = self.valid
        rows = pack(data.lengths, data.seq, np.arange(len(data)))
        return in_rows(data, rows, batch, max_batches)

    def test_batches(self, batch: int) -> list[Batch]:
        """Return no batches: preferences have no test part."""
        return []

    def with_valid(self, other: "PreferenceData", where: str) -> "PreferenceData":
        """Return these data with the training part of others as the validation part.

        Raises DataError if one is pairs and the other labelled completions.
        """
        if (self.train.wanted is None) != (other.train.wanted is None):
            raise DataError(
                f"{where}: expected training and validation data that are both pairs, or both "
                f"labelled completions; got one of each"
            )
        notes, mapped = self.notes + other.notes, (*self.mapped, *other.mapped)
        return replace(self, valid=other.train, notes=notes, mapped=mapped)

    def prompt(self) -> list[int]:
        """Return the token ids of the first validation prompt, or else training prompt."""
        ids, labels = (self.valid if len(self.valid) else self.train).example(0)
        return [int(id) for id in ids[: int(np.argmax(labels != IGNORED)) + 1]]


def read_preferences(
    path: str | Path, encoder: Encoder, seq: int | ReadOptions, *, loss: str = "dpo", **more: Any
) -> PreferenceData:
    """Read pairs for "dpo" and "orpo", labelled completions for "kto".

    ``path`` is a file of rows, or a folder with train.jsonl (or train.parquet, ...) and perhaps
    valid.jsonl; without a validation file, some rows are held out. For "kto", pairs become labelled
    completions: chosen ones are wanted. A pair is dropped, and counted, if cutting leaves one of
    its completions without a token. ``seq`` and ``more`` are those of ``jsonl.read``.

    Raises DataError, with file and line.
    """
    path = Path(path)
    how = replace(ReadOptions.of(seq, more), mask_prompt=True)
    reader = PreferenceReader(Reader(encoder, how), loss)
    if path.is_dir():
        train = reader.read(parts_of(path)["train"])
        beside = part_of(path, VALID)
        valid = None if beside is None else reader.read(beside)
    else:
        train, valid = reader.read(path), None
    notes = reader.notes
    if valid is None:
        train, valid, said = split_off(path, train, how.seed, VALID, how.holdout)
        notes += said
    else:
        check_not_asked(path, how.holdout)
    chats = bool(reader.reader.roles)
    return PreferenceData(train, valid, how.seq, notes, chats, mapped=tuple(reader.reader.mapped))


def read_all_preferences(
    path: str | Path, encoder: Encoder, seq: int | ReadOptions, *, loss: str = "dpo", **more: Any
) -> tuple[Preferences, list[str]]:
    """Read all preferences of a file, none held out; return them and notes.

    The arguments are those of ``read_preferences``. Raises DataError, with file and line.
    """
    how = replace(ReadOptions.of(seq, more), mask_prompt=True)
    reader = PreferenceReader(Reader(encoder, how), loss)
    return reader.read(Path(path)), reader.notes


class PreferenceReader:
    """Reads files of preferences."""

    def __init__(self, reader: Reader, loss: str) -> None:
        self.reader, self.loss = reader, loss
        self.notes: list[str] = []

    def read(self, path: Path) -> Preferences:
        """Read a file. Raises DataError."""
        paired = self.loss != "kto"
        examples, facts = self.reader.stored(
            path, {"preferences": "pairs" if paired else "kto"}, lambda new: self._fill(path, new)
        )
        self.reader.roles.update(facts["roles"])
        wanted = [letter == "1" for letter in facts["wanted"]]
        count = len(wanted) // (2 if paired else 1)
        said = f"{path}: {counted(count, 'pair' if paired else 'completion')}, "
        said += f"{counted(facts['labels'], 'token')} of completions"
        if facts["cut"]:
            said += f"; {facts['cut']:,} cut to {self.reader.how.seq:,} tokens"
        if facts["dropped"]:
            said += f"; {facts['dropped']:,} dropped: no token of a completion was left"
        if not count:
            raise DataError(f"{said}; use a longer sequence, or shorter prompts")
        if not paired and len(set(wanted)) == 1:
            which = "wanted" if wanted[0] else "not wanted"
            raise DataError(f"{path}: label: expected both true and false; all are {which}")
        self.notes.append(said)
        return Preferences(examples, None if paired else wanted, whole=self.loss == "orpo")

    def _fill(self, path: Path, examples: Examples) -> dict[str, Any]:
        """Read a file into examples; a row's sequences are added all, or none of them."""
        reader, dropped = self.reader, 0
        wanted: list[str] = []
        for row in reader.good(path, self.made):
            fresh = Examples(reader.how.seq, keep_end=reader.how.keep_end)
            for example in row.made:
                fresh.append(example)
            if len(fresh) < len(row.made):
                dropped += 1
                continue
            for example, said in zip(row.made, row.said, strict=True):
                examples.append(example)
                wanted.append("01"[said.wanted])
        facts = {"labels": examples.labels, "cut": examples.cut, "dropped": dropped}
        return {**facts, "wanted": "".join(wanted), "roles": sorted(reader.roles)}

    def _form(self, where: str, row: Fields) -> tuple[str, ...]:
        """Return the keys of a line's format. Raises DataError for other keys."""
        keys = {"prompt", *PAIR, "completion", "label"}
        unknown = [key for key in row if key not in keys]
        got = ", ".join(map(repr, list(row)[:8])) or "an empty object"
        if unknown:
            raise DataError(
                f"{where}: unknown field {unknown[0]!r}: expected prompt, chosen and rejected, or "
                f"prompt, completion and label; got {got}{meant(row)}"
            )
        if all(key in row for key in PAIR) and not row.keys() & {"completion", "label"}:
            return PAIR
        if row.keys() == set(LABELLED):
            if self.loss == "kto":
                return LABELLED[1:]
            raise DataError(f"{where}: {self.loss} needs chosen and rejected; got {got}")
        raise DataError(
            f"{where}: expected prompt, chosen and rejected, or prompt, completion and label; got "
            f"{got}"
        )

    def made(self, where: str, row: Fields) -> tuple[tuple[str, ...], Iterator[Contents]]:
        """Return the keys of a row's format, and its sequences. Raises DataError."""
        return self._form(where, row), self._contents(where, row)

    def _contents(self, where: str, row: Fields) -> Iterator[Contents]:
        if "label" in row:
            if not isinstance(row["label"], bool):
                raise DataError(f"{where}: label: expected true or false; got {row['label']!r}")
            yield Contents(*self._parts(where, row, "completion"), row["label"])
            return
        if row["chosen"] == row["rejected"]:
            raise DataError(f"{where}: chosen and rejected are equal: such a pair has no gradient")
        for key in PAIR:
            yield Contents(*self._parts(where, row, key), key == "chosen")

    def _parts(self, where: str, row: Fields, key: str) -> tuple[Parts | Talk, int]:
        """Return a sequence's contents, and how many assistant turns its prompt has."""
        prompt, completion = row.get("prompt"), row[key]
        if not isinstance(completion, list):
            if "prompt" not in row:
                raise DataError(f"{where}: expected a prompt; only messages can do without")
            if isinstance(prompt, list):
                raise DataError(f"{where}: {key}: expected messages, as the prompt is; got a text")
            texts = {"prompt": prompt, "completion": string_of(where, row, key)}
            return self.reader.completion(where, texts), 0
        if prompt is not None and not isinstance(prompt, list):
            raise DataError(f"{where}: prompt: expected messages, as {key} is; got a string")
        before = len(prompt) if prompt is not None else self._common(row)
        messages = [*(prompt or ()), *completion]
        talk = self.reader.messages(where, {"messages": messages}, self.reader.roles)
        return talk, answers(talk.messages[:before])

    def _common(self, row: Fields) -> int:
        """Return how many messages the two conversations of a line have in common."""
        chosen, rejected = (row[key] for key in PAIR)
        if not isinstance(chosen, list) or not isinstance(rejected, list):
            return 0  # the reader of the other one says what is wrong
        alike = [a == b for a, b in zip(chosen, rejected, strict=False)]
        return (*alike, False).index(False)
