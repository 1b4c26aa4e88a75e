"""Survey a file of rows: formats, fields, lengths, hashes, refused rows.

A file is read once, row by row; 48 bytes of each row are kept, 64 of a pair. Rows are read and
tokenized exactly as in training. A row that training would refuse is counted and skipped. Without a
tokenizer, a token is a character (`Characters`).
"""

import json
import re
from array import array
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from functools import cached_property, partial
from hashlib import blake2b
from itertools import chain
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from toynn.data._containers import COMPRESSED, is_array, kind_of, texts, texts_note
from toynn.data._rows import where_of
from toynn.data.bounds import USUAL, Bounds
from toynn.data.preference import LABELLED, PAIR, PreferenceReader
from toynn.data.reader import (
    ASSISTANT,
    Contents,
    DataRow,
    Encoder,
    Fields,
    Maker,
    Reader,
    ReadOptions,
    Talk,
)
from toynn.data.repeats import Repeats, repeated
from toynn.data.splits import files_of
from toynn.data.stream import Progress, silent
from toynn.errors import DataError, GGUFError
from toynn.system.printing import strings_in
from toynn.system.reading import readable

SHOWN = 3  # examples that are kept to show
REFUSED = 5  # refused rows whose error is kept
CHARACTERS = 2000  # the most different characters without a token of their own that are listed
NO_PROMPT = 0
_NONE = np.empty(0, np.int64)
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

    def look(self, ids: NDArray[Any], survey: "Survey") -> None:
        """Count the tokens that are unknown, special, or parts of characters."""
        if self.unknown is not None:
            survey.unknown += int(np.count_nonzero(ids == self.unknown))
        for id in np.unique(ids[self.special[ids]]).tolist():
            if len(survey.special.get(id, ())) < 2:  # one that begins a row is predicted by nothing
                end = int(np.flatnonzero(ids == id)[-1]) + 1
                survey.special[id] = ids[max(0, end - WINDOW) : end].astype(np.int32)
        at = np.flatnonzero(self.fragments[ids])
        survey.fragments += len(at)
        if len(at) and len(survey.odd) < CHARACTERS:
            for run in np.split(ids[at], np.flatnonzero(np.diff(at) > 1) + 1):
                text = b"".join(self.pieces[int(id)] for id in run).decode(errors="replace")
                survey.odd.update(text)


class ShownSequence(NamedTuple):
    """A sequence to show: its place, its ids, and which of them have loss.

    In a preference, ``name`` is its role: chosen or rejected, wanted or unwanted.
    """

    where: str
    ids: list[int]
    trained: list[bool]
    name: str = ""

    def cut(self, seq: int | None) -> "ShownSequence":
        """Return the first seq + 1 tokens, as training in rows of seq tokens uses them."""
        end = len(self.ids) if seq is None else seq + 1
        return self._replace(ids=self.ids[:end], trained=self.trained[:end])


@dataclass
class Survey:
    """The findings in a file. A row is one sequence of tokens; a preference pair is two."""

    path: Path
    kind: str
    compression: str | None
    bytes: int
    forms: Counter[str] = field(default_factory=Counter)
    fields: Counter[str] = field(default_factory=Counter)
    read: set[str] = field(default_factory=set)  # fields that training reads
    roles: set[str] = field(default_factory=set)
    refused: int = 0
    errors: list[str] = field(default_factory=list)  # of the first refused rows
    faults: set[str] = field(default_factory=set)  # of the model, each an error of every row
    lengths: Any = field(default_factory=partial(array, "q"))  # tokens; of a text up to each line
    trained: Any = field(default_factory=partial(array, "i"))
    prompts: Any = field(default_factory=partial(array, "i"))  # tokens before the first with loss
    exact: Any = field(default_factory=partial(array, "Q"))  # hashes of rows
    alike: Any = field(default_factory=partial(array, "Q"))  # hashes of the words alone
    asked: Any = field(default_factory=partial(array, "Q"))  # hashes of prompts alone
    places: Any = field(default_factory=partial(array, "q"))  # lines; or a list of where rows are
    shown: list[ShownSequence] = field(default_factory=list)
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

    @cached_property
    def repeats(self) -> tuple[Repeats, Repeats]:
        """The rows that repeat another one: as they are, and by their words."""
        return repeated(self.exact), repeated(self.alike)

    def trained_rows(self, seq: int | None) -> NDArray[np.int64]:
        """Return the rows that have a token with loss within seq. A run uses only these."""
        room = np.inf if seq is None else seq + 1
        good = (np.array(self.trained) > 0) & (np.array(self.prompts) < room)
        return np.flatnonzero(good.reshape(self.rows, -1).all(axis=1)) if self.rows else _NONE

    def where(self, index: int) -> str:
        """Return where a row is."""
        return where_of(self.path, self.places[index])


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
    compression = (
        {".gz": "gzip", ".zst": "zstd"}[path.suffix] if path.suffix in COMPRESSED else None
    )
    files = list(texts(path)) if path.is_dir() else files_of(path)
    with readable(path):
        size = sum(each.stat().st_size for each in files)
    result = Survey(path, kind, compression, size)
    if path.is_dir() or len(files) > 1 or kind_of(path) in (".csv", ".tsv"):
        result.places = []
    if len(files) > 1 and not path.is_dir():
        result.kind = f"{len(files)} files, {kind}"
    elif is_array(path):
        result.kind = "one JSON array"
    how = ReadOptions(
        seq=2**31 - 2,
        vocab_size=vocab_size,
        mask_prompt=mask_prompt,
        columns=columns,
        bounds=bounds,
        progress=progress,
    )
    reader = Reader(encoder, how)
    with closing(reader.rows(path, _maker(reader, result.roles))) as rows:
        for row in rows:
            _add(result, row, vocabulary)
    return result


def _maker(reader: Reader, roles: set[str]) -> Maker:
    """Return what makes the sequences of a row of any format, also of a preference."""
    plain = reader.maker(roles)
    labelled, paired = (PreferenceReader(reader, loss).made for loss in ("kto", "dpo"))

    def made(where: str, row: Fields) -> tuple[tuple[str, ...], Iterable[Contents]]:
        if row.keys() == set(LABELLED) or all(key in row for key in PAIR):
            return (labelled if "label" in row else paired)(where, row)
        return plain(where, row)

    return made


def _add(survey: Survey, row: DataRow, vocabulary: Vocabulary | None) -> None:
    """Add a row to what was found: the fold."""
    survey.fields.update(row.fields.keys())
    is_preference = row.form in (PAIR, LABELLED[1:])
    more = row.fields.keys() if is_preference else MORE.get(row.form[0], ()) if row.form else ()
    keys = [key for key in dict.fromkeys((*row.form, *more)) if key in row.fields]
    survey.read.update(keys)
    if row.error is not None:
        _refuse(survey, row.error)
        return
    names: tuple[str, ...] = ("",)
    if is_preference:
        names = ("rejected", "chosen") if row.form == PAIR else ("unwanted", "wanted")
    sequences = []
    for said, made in zip(row.said, row.made, strict=True):
        ids = list(chain.from_iterable(some for some, _ in made))
        trained = [learn for some, learn in made for _ in some]
        sequences.append(
            ShownSequence(row.where, ids, trained, names[said.wanted and is_preference])
        )
        survey.lengths.append(len(ids))
        survey.trained.append(sum(trained[1:]))
        survey.prompts.append(trained.index(True) if True in trained else len(ids))
        survey.tokens += len(ids)
        if vocabulary is not None and ids:
            vocabulary.look(np.array(ids), survey)
    if len(survey.shown) < SHOWN:  # both sequences of a pair
        survey.shown += sequences
    hashes = _hashes(row.fields, keys)
    for column, number in zip((survey.exact, survey.alike, survey.asked), hashes, strict=True):
        column.append(number)
    survey.places.append(row.place)
    survey.forms[FORMS.get(row.form, " and ".join(row.form))] += 1


def _refuse(survey: Survey, error: DataError) -> None:
    """Count a refused row. A fault of the model refuses every row: its error is kept once."""
    survey.refused += 1
    fault = error.__cause__
    if isinstance(fault, GGUFError) and not survey.rows:
        if str(fault) in survey.faults:
            return
        survey.faults.add(str(fault))
    if len(survey.errors) < REFUSED:
        survey.errors.append(str(error))


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
    return " ".join(re.findall(r"\w+", " ".join(strings_in(value)).casefold()))


def hash_of(text: str) -> int:
    """Return a hash of 64 bits."""
    raw = text.encode(errors="surrogatepass")
    return int.from_bytes(blake2b(raw, digest_size=8).digest(), "little")
