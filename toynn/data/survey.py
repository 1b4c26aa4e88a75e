"""Survey a file of rows: formats, fields, lengths, hashes, refused rows.

A file is read once, row by row; 48 bytes of each row are kept, 64 of a pair. Rows are read and
tokenized exactly as in training. A row that training would refuse is counted and skipped. Without a
tokenizer, a token is a character (`Characters`).
"""

import json
import re
from array import array
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from hashlib import blake2b
from itertools import chain
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from toynn.data._containers import PACKED, is_array, is_container, kind_of, texts, texts_note
from toynn.data._rows import attempts, form_of, line_of, where_of
from toynn.data.bounds import USUAL, Bounds
from toynn.data.jsonl import KINDS, TEST, TRAIN, VALID
from toynn.data.preference import LABELLED, PAIR, PreferenceReader
from toynn.data.reader import (
    ASSISTANT,
    Encoder,
    Made,
    Parts,
    Reader,
    ReadOptions,
    Talk,
    without_loss,
)
from toynn.data.splits import files_of, part_of
from toynn.data.stream import Progress, silent
from toynn.errors import DataError, GGUFError, ToynnError
from toynn.system.reading import readable

__all__ = [
    "Characters",
    "Shown",
    "Survey",
    "Vocabulary",
    "hash_of",
    "parts_of",
    "survey",
    "words_of",
]

SHOWN = 3  # examples that are kept to show
REFUSED = 5  # refused rows whose error is kept
CHARACTERS = 2000  # the most different characters without a token of their own that are listed
NO_PROMPT = 0
WINDOW = 256  # tokens up to a special token that are kept
FORMS = {
    ("text",): "text",
    ("prompt", "completion"): "prompt and completion",
    ("messages",): "messages (OpenAI's)",
    ("conversations",): "conversations (ShareGPT's)",
    ("instruction", "output"): "instruction and output (Alpaca's)",
}
NAMES = {
    ".jsonl": "lines of JSON",
    ".json": "lines of JSON",
    ".csv": "CSV",
    ".tsv": "tab-separated values",
    ".parquet": "Parquet",
    ".arrow": "Arrow",
    ".feather": "Feather (Arrow)",
}
#: Fields that are read in addition to the format's keys.
MORE = {
    "messages": ("tools",),
    "prompt": ("tools",),
    "conversations": ("system",),
    "instruction": ("input",),
}


class Characters:
    """An encoder whose tokens are characters, for data without a tokenizer."""

    bos = eos = None
    add_bos = of_bytes = False
    fingerprint = "characters"
    vocab_size = 0x110000

    def encode_many(self, texts: Sequence[tuple[str, bool]]) -> list[list[int]]:
        """Return the characters of texts."""
        return [list(map(ord, text)) for text, _ in texts]

    def encode_blocks(self, blocks: Iterable[str]) -> Iterator[NDArray[np.int32]]:
        """Yield the characters of a text."""
        for block in blocks:
            yield np.array(list(map(ord, block)), np.int32)

    def encode_talks(self, talks: Iterable[Talk]) -> Iterator[list[tuple[list[int], bool]]]:
        """Yield the characters of conversations: roles, and what they say or call."""
        for messages, _ in talks:
            turns = []
            for message in messages:
                calls = message.get("tool_calls")
                said = f"{message['content']}{json.dumps(calls) if calls else ''}\n"
                turns.append((list(map(ord, f"{message['role']}: ")), False))
                turns.append((list(map(ord, said)), message["role"] == ASSISTANT))
            yield turns


@dataclass(frozen=True)
class Vocabulary:
    """The ids of a tokenizer that are not whole characters.

    Attributes
    ----------
    unknown
        The id of the unknown token; None if the tokenizer has none.
    fragments
        For each id, whether it is a part of a character, bool (vocab,).
    pieces
        The bytes of each id that is a fragment.
    special
        For each id, whether it is a special token, bool (vocab,).
    """

    unknown: int | None
    fragments: NDArray[np.bool_]
    pieces: Mapping[int, bytes]
    special: NDArray[np.bool_]

    def look(self, ids: NDArray[Any], found: "Survey") -> None:
        """Count the tokens that are unknown, special, or parts of characters."""
        if self.unknown is not None:
            found.unknown += int(np.count_nonzero(ids == self.unknown))
        for id in np.unique(ids[self.special[ids]]).tolist():
            if len(found.special.get(id, ())) < 2:  # one that begins a row is predicted by nothing
                end = int(np.flatnonzero(ids == id)[-1]) + 1
                found.special[id] = ids[max(0, end - WINDOW) : end].astype(np.int32)
        at = np.flatnonzero(self.fragments[ids])
        found.fragments += len(at)
        if len(at) and len(found.odd) < CHARACTERS:
            for run in np.split(ids[at], np.flatnonzero(np.diff(at) > 1) + 1):
                text = b"".join(self.pieces[int(id)] for id in run).decode(errors="replace")
                found.odd.update(text)


class Shown(NamedTuple):
    """A sequence to show: its place, its ids, and which of them have loss.

    In a preference, ``name`` is its role: chosen or rejected, wanted or unwanted.
    """

    where: str
    ids: list[int]
    trained: list[bool]
    name: str = ""

    def cut(self, seq: int | None) -> "Shown":
        """Return the first seq + 1 tokens, as training in rows of seq tokens uses them."""
        end = len(self.ids) if seq is None else seq + 1
        return self._replace(ids=self.ids[:end], trained=self.trained[:end])


@dataclass
class Survey:
    """The findings in a file. A row is one sequence of tokens; a preference pair is two."""

    path: Path
    kind: str
    packed: str | None
    bytes: int
    forms: Counter[str] = field(default_factory=Counter)
    fields: Counter[str] = field(default_factory=Counter)
    read: set[str] = field(default_factory=set)  # fields that training reads
    roles: set[str] = field(default_factory=set)
    refused: int = 0
    errors: list[str] = field(default_factory=list)  # of the first refused rows
    lengths: Any = field(default_factory=lambda: array("q"))  # tokens; a text's: up to a line's end
    trained: Any = field(default_factory=lambda: array("i"))
    prompts: Any = field(default_factory=lambda: array("i"))  # tokens before the first with loss
    exact: Any = field(default_factory=lambda: array("Q"))  # hashes of rows
    alike: Any = field(
        default_factory=lambda: array("Q")
    )  # hashes without case, spaces, punctuation
    asked: Any = field(default_factory=lambda: array("Q"))  # hashes of prompts alone
    places: Any = field(default_factory=lambda: array("q"))  # lines; or a list of file names
    shown: list[Shown] = field(default_factory=list)
    tokens: int = 0
    unknown: int = 0
    fragments: int = 0
    odd: Counter[str] = field(default_factory=Counter)  # characters that are several tokens
    #: Special tokens that occur, by id: the tokens of a row up to it.
    special: dict[int, NDArray[np.int32]] = field(default_factory=dict)

    @property
    def rows(self) -> int:
        """The number of good rows."""
        return len(self.places)

    def where(self, index: int) -> str:
        """Return where a row is."""
        return where_of(self.path, self.places[index])


def parts_of(path: Path) -> dict[str, Path]:
    """Return the file of each part of the data; without parts, all data are "train".

    Raises DataError for data that are not rows.
    """
    if path.is_dir():
        found = {name.removesuffix(".jsonl"): part_of(path, name) for name in (TRAIN, VALID, TEST)}
        if found["train"] is not None:
            return {name: file for name, file in found.items() if file is not None}
    if path.suffix == ".bin" or (path.is_dir() and any(path.glob("*.bin"))):
        raise DataError(f"{path}: it holds tokens already: `toynn train` checks all of them")
    if path.exists() and not is_container(path):
        raise DataError(f"{path}: expected {KINDS}, or a text (.txt)")
    return {"train": path}


def survey(
    path: Path,
    encoder: Encoder,
    vocab_size: int,
    *,
    vocabulary: Vocabulary | None = None,
    mask_prompt: bool = True,
    columns: Mapping[str, str] = MappingProxyType({}),
    bounds: Bounds = USUAL,
    progress: Progress = silent,
) -> Survey:
    """Survey a file or a folder of texts. Raises DataError if it cannot be read."""
    is_folder = path.is_dir()
    kind = f"texts, {texts_note(path)}" if is_folder else NAMES.get(kind_of(path), "unknown")
    packed = {".gz": "gzip", ".zst": "zstd"}[path.suffix] if path.suffix in PACKED else None
    files = list(texts(path)) if path.is_dir() else files_of(path)
    with readable(path):
        size = sum(each.stat().st_size for each in files)
    found = Survey(path, kind, packed, size)
    if path.is_dir() or len(files) > 1:
        found.places = []
    if len(files) > 1 and not path.is_dir():
        found.kind = f"{len(files)} files, {kind}"
    elif is_array(path):
        found.kind = "one JSON array"
    how = ReadOptions(
        seq=2**31 - 2,
        vocab_size=vocab_size,
        mask_prompt=mask_prompt,
        columns=columns,
        bounds=bounds,
    )
    reader = Reader(encoder, how)
    _Surveyor(found, reader, vocabulary).go(attempts(path, progress, columns, bounds))
    return found


class _Waiting(NamedTuple):
    """A sequence whose ids are still to come."""

    place: int | str
    hashes: tuple[int, int, int]
    skipped: int = 0  # assistant turns of its prompt
    last: bool = True  # whether it is the last of its row
    name: str = ""  # its role in a preference


class _Surveyor:
    def __init__(self, found: Survey, reader: Reader, vocabulary: Vocabulary | None) -> None:
        self.found, self.reader, self.vocabulary = found, reader, vocabulary
        self.first: tuple[str, int | str] | None = None
        self.waiting: deque[tuple[_Waiting, tuple[str, Parts | Talk]]] = deque()
        self.group: list[Shown] = []  # the sequences of the current row
        self.faults: set[str] = set()  # faults of the model that were counted already
        self.forms = reader.forms(found.roles)
        self.passed_over: int | str | None = None  # a refused row; its other sequences are skipped

    def go(self, rows: Iterator[tuple[int | str, Mapping[str, Any] | DataError]]) -> None:
        """Survey all rows; after a row that the template refuses, continue with the next."""
        source = self._said(rows)
        again: list[tuple[_Waiting, tuple[str, Parts | Talk]]] = []
        while True:
            self.waiting.clear()
            given = chain(again, source)
            try:
                with closing(self.reader.encoded(self._noted(given))) as encoded:
                    for made in encoded:
                        self._add(self.waiting.popleft()[0], made)
                return
            except ToynnError as error:
                if not self.waiting:
                    raise
                self._refuse(error)
                self.group, self.passed_over = [], self.waiting[0][0].place
                again = list(self.waiting)

    def _noted(
        self, given: Iterable[tuple[_Waiting, tuple[str, Parts | Talk]]]
    ) -> Iterator[tuple[str, Parts | Talk]]:
        for each in given:
            if each[0].place != self.passed_over:
                self.waiting.append(each)
                yield each[1]

    def _said(
        self, rows: Iterator[tuple[int | str, Mapping[str, Any] | DataError]]
    ) -> Iterator[tuple[_Waiting, tuple[str, Parts | Talk]]]:
        """Yield the sequences of each good row; count the refused rows."""
        for place, row in rows:
            try:
                if isinstance(row, DataError):
                    raise row
                self.found.fields.update(row.keys())
                yield from list(self._of_row(place, row))
            except DataError as error:
                self._refuse(error)

    def _of_row(
        self, place: int | str, row: Mapping[str, Any]
    ) -> Iterator[tuple[_Waiting, tuple[str, Parts | Talk]]]:
        where = where_of(self.found.path, place)
        preference = row.keys() == set(LABELLED) or all(key in row for key in PAIR)
        if preference:
            own = PreferenceReader(self.reader, "kto" if "label" in row else "dpo")
            form, keys = " and ".join(own.form(where, row)), tuple(row)
        else:
            known = form_of(where, row)
            form, keys = FORMS[known], (*known, *MORE.get(known[0], ()))
        if self.first is None:
            self.first = form, place
        elif form != self.first[0]:
            raise DataError(
                f"{where}: expected {self.first[0]}, as {line_of(self.first[1])} has; got {form}"
            )
        hashes = _hashes(row, keys)
        if preference:
            names = ("unwanted", "wanted") if "label" in row else ("rejected", "chosen")
            for said, sequence in own.sequences(where, row):
                name = names[sequence.wanted]
                waiting = _Waiting(place, hashes, sequence.skipped, sequence.last, name)
                yield waiting, (where, said)
        else:
            yield _Waiting(place, hashes), (where, self.forms[known](where, row))
        self.found.read.update(key for key in keys if key in row)

    def _refuse(self, error: ToynnError) -> None:
        self.found.refused += 1
        fault = error.__cause__
        if (
            isinstance(fault, GGUFError) and not self.found.rows
        ):  # a fault of the model fails every row
            if str(fault) in self.faults:
                return
            self.faults.add(str(fault))
        if len(self.found.errors) < REFUSED:
            self.found.errors.append(str(error))

    def _add(self, row: _Waiting, made: Made) -> None:
        found = self.found
        whole = Shown(where_of(found.path, row.place), [], [], row.name)
        for some, learn in without_loss(made, row.skipped):
            whole.ids.extend(some)
            whole.trained.extend([learn] * len(some))
        self.group.append(whole)
        if not row.last:
            return
        if len(found.shown) < SHOWN:  # both sequences of a pair
            found.shown += self.group
        for _, ids, trained, _ in self.group:
            found.lengths.append(len(ids))
            found.trained.append(sum(trained[1:]))
            found.prompts.append(trained.index(True) if True in trained else len(ids))
            found.tokens += len(ids)
            if self.vocabulary is not None and ids:
                self.vocabulary.look(np.array(ids), found)
        for column, number in zip((found.exact, found.alike, found.asked), row.hashes, strict=True):
            column.append(number)
        found.places.append(row.place)
        found.forms[self.first[0] if self.first else ""] += 1
        self.group = []


def _hashes(row: Mapping[str, Any], keys: Iterable[str]) -> tuple[int, int, int]:
    """Return the hashes of a row, of its words alone, and of its prompt's words."""
    said = {key: row[key] for key in keys if row.get(key)}
    prompt = {k: v for k, v in said.items() if k in ("prompt", "instruction", "input")}
    for key in ("messages", "conversations"):
        if isinstance(said.get(key), list):
            prompt = {key: said[key][:-1]}
    text = json.dumps(said, sort_keys=True, default=str)
    asked = words_of(prompt) if prompt else ""
    return hash_of(text), hash_of(words_of(said)), hash_of(asked) if asked else NO_PROMPT


def words_of(value: Any) -> str:
    """Return the words of all strings in a value, in lower case."""
    return " ".join(re.findall(r"\w+", " ".join(_texts(value)).casefold()))


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for part in value.values():
            yield from _texts(part)
    elif isinstance(value, list | tuple):
        for part in value:
            yield from _texts(part)


def hash_of(text: str) -> int:
    """Return a hash of 64 bits."""
    raw = text.encode(errors="surrogatepass")
    return int.from_bytes(blake2b(raw, digest_size=8).digest(), "little")
