"""Turn the rows of a file into tokens, in parts with and without loss, on all cores.

A bad row is a value: a `DataRow` with an error. `good` raises it, for training. A survey counts it.
"""

from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from itertools import chain, groupby
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from toynn.data._containers import texts_note
from toynn.data._forms import checked_calls, from_alpaca, from_sharegpt
from toynn.data._rows import attempts, checked_messages, form_of, line_of, string_of, where_of
from toynn.data.bounds import USUAL, Bounds
from toynn.data.examples import Examples
from toynn.data.store import FillExamples, InMemory, Store, Watched, check_ids
from toynn.data.stream import Progress, silent
from toynn.errors import DataError, ToynnError
from toynn.system.printing import counted

ASSISTANT = "assistant"
CLASSES = {"label", "labels"}  # keys of classes, which training on text does not read
TOGETHER = 2**18  # characters that are encoded at once
BAD = 99  # bad rows in succession that wait for the rows around them


class Said(NamedTuple):
    """A part of an example: text or ids, with or without loss; may continue the part before."""

    what: str | Sequence[int]
    trained: bool
    continues: bool = False


Parts = Sequence[Said]


class Talk(NamedTuple):
    """A conversation: messages, and the descriptions of tools or None."""

    messages: Sequence[Mapping[str, Any]]
    tools: Sequence[Mapping[str, Any]] | None = None


Made = list[tuple[Sequence[int], bool]]  # ids of parts, and whether they have loss
Fields = Mapping[str, Any]


class Contents(NamedTuple):
    """A sequence of a row: what it says, and in a preference, whether that is wanted.

    ``skipped`` assistant turns of its prompt have no loss.
    """

    what: Any  # Parts or a Talk
    skipped: int = 0
    wanted: bool = True


@dataclass(slots=True)
class DataRow:
    """A row of a file: one sequence, or the two of a pair; or why it is refused.

    Attributes
    ----------
    place, where
        Its line, or file and line if the path means several files; the same for an error.
    fields, form
        The object, and the keys of its format.
    said, made
        What its sequences say; the ids of their parts, and whether these have loss.
    error
        Why training refuses it.
    """

    place: int | str
    where: str
    fields: Fields = field(default_factory=dict)
    form: tuple[str, ...] = ()
    said: Sequence[Contents] = ()
    made: Sequence[Made] = ()
    error: DataError | None = None


#: A function of a row's place and its fields: the keys of its format, and its sequences.
Maker = Callable[[str, Fields], tuple[tuple[str, ...], Iterable[Contents]]]


class Encoder(Protocol):
    """Turns texts into ids: a tokenizer."""

    @property
    def bos(self) -> int | None:
        """The token that begins a text."""

    @property
    def eos(self) -> int | None:
        """The token that ends a text."""

    @property
    def add_bos(self) -> bool:
        """Whether a text begins with BOS."""

    @property
    def of_bytes(self) -> bool:
        """Whether a token is a byte."""

    @property
    def fingerprint(self) -> str:
        """A string that is unique to the tokenizer."""

    def encode_many(self, texts: Sequence[tuple[str, bool]]) -> Sequence[Sequence[int]]:
        """Return the ids of texts; each text's flag says whether it continues the one before."""

    def encode_blocks(self, blocks: Iterable[str]) -> Iterator[NDArray[np.int32]]:
        """Yield the ids of a long text that comes in blocks."""

    def encode_talks(self, talks: Iterable["Talk"]) -> Iterator[Sequence[tuple[list[int], bool]]]:
        """Yield each conversation as parts: ids, and whether the assistant says them."""


@dataclass(frozen=True, kw_only=True)
class ReadOptions:
    """How to read data of any format; each reader uses the options it needs.

    Attributes
    ----------
    seq
        The most tokens of an example; the tokens of a window.
    vocab_size
        The model's vocabulary; every id must be below this.
    seed
        Draws the examples to hold out if the data have no validation part.
    holdout
        How much to hold out then: a share below 1, or a number of examples (for a text, of tokens);
        0: nothing. By default a tenth, but nothing of fewer than FEW examples.
    mask_prompt
        Whether prompts and users' messages have no loss.
    keep_end
        Whether an example that is too long loses its beginning instead of its end.
    packing
        Whether examples share rows.
    columns
        The data's column for each field that has another name there.
    bounds
        The largest bytes of a line, and of unpacked data.
    separator
        The text between the documents of a text.
    store, progress
        The store of the tokens, by default memory; a function that is called with the bytes read so
        far.
    """

    seq: int
    vocab_size: int
    seed: int = 0
    holdout: float | None = None
    mask_prompt: bool = True
    keep_end: bool = False
    packing: bool = False
    columns: Mapping[str, str] = field(default_factory=dict)
    bounds: Bounds = USUAL
    separator: str = ""
    store: Store | None = None
    progress: Progress = silent

    @classmethod
    def of(cls, seq: "int | ReadOptions", more: Mapping[str, Any]) -> "ReadOptions":
        """Return options from a ReadOptions or a number of tokens, changed by ``more``."""
        return replace(seq, **more) if isinstance(seq, ReadOptions) else cls(seq=seq, **more)

    @property
    def kept_in(self) -> Store:
        """The store of the tokens."""
        return self.store or InMemory()


class Reader:
    """Reads the files of one data set."""

    def __init__(self, encoder: Encoder, how: ReadOptions) -> None:
        self.encoder, self.how = encoder, how
        self.notes: list[str] = []
        self.roles: set[str] = set()  # in conversations
        self.mapped: list[Watched] = []  # files mapped by the store

    def read(self, path: Path) -> Examples:
        """Read a file; add a note about what was cut and dropped. Raises DataError."""
        examples, facts = self.stored(path, {}, lambda empty: self._fill(path, empty))
        labels, cut, dropped = (facts[name] for name in ("labels", "cut", "dropped"))
        self.roles.update(facts["roles"])
        note = f"{path}: {counted(len(examples), 'example')}, {counted(labels, 'token')} with loss"
        if cut:
            end = "the last " if self.how.keep_end else ""
            note += f"; {cut:,} cut to {end}{self.how.seq:,} tokens"
        if dropped:
            note += f"; {dropped:,} dropped: no token with loss was left"
        if classes := facts.get("classes"):  # a cache may be older
            note += (
                f"; {' and '.join(classes)} not read: to learn a class, write it as a completion"
            )
        if not len(examples):
            if self.roles and ASSISTANT not in self.roles:
                roles = ", ".join(sorted(self.roles))
                raise DataError(
                    f"{note}; expected messages of the role {ASSISTANT}, which have loss; got the "
                    f"roles {roles}"
                )
            raise DataError(f"{note}; use a longer sequence, or shorter prompts")
        if path.is_dir():
            note += f"; {texts_note(path)}"
        self.notes.append(note)
        return examples

    def stored(
        self, path: Path, key: dict[str, Any], fill: FillExamples
    ) -> tuple[Examples, dict[str, Any]]:
        """Return a file's examples from the store; ``key`` and the options name them."""
        key = key | {"encoder": self.encoder.fingerprint, "vocab_size": self.how.vocab_size}
        key |= {"columns": dict(self.how.columns)} if self.how.columns else {}
        key |= {
            "seq": self.how.seq,
            "keep_end": self.how.keep_end,
            "mask_prompt": self.how.mask_prompt,
        }
        empty = Examples(self.how.seq, keep_end=self.how.keep_end)
        examples, facts, mapped = self.how.kept_in.examples(path, key, empty, fill)
        self.mapped += mapped
        return examples, facts

    def _fill(self, path: Path, examples: Examples) -> dict[str, Any]:
        """Read all rows of a file into examples."""
        roles: set[str] = set()
        classes: set[str] = set()
        for row in self.good(path, self.maker(roles)):
            classes.update(CLASSES & row.fields.keys())
            examples.append(row.made[0])
        counts = {name: getattr(examples, name) for name in ("labels", "cut", "dropped")}
        return {**counts, "roles": sorted(roles), "classes": sorted(classes)}

    def good(self, path: Path, maker: Maker) -> Iterator[DataRow]:
        """Yield the rows of a file. Raises DataError for a bad row, and for a file without rows."""
        is_empty = True
        with closing(self.rows(path, maker)) as rows:
            for row in rows:
                if row.error is not None:
                    raise row.error  # refers to the frames that have the file open: closed here
                yield row
                is_empty = False
        if is_empty:
            raise DataError(f"{path}: expected a JSON object per line; got none")

    def rows(self, path: Path, maker: Maker) -> Generator[DataRow, None, None]:
        """Yield the rows of a file, encoded on all cores; a bad row has an error.

        All rows have the format of the first. Raises DataError for a file that cannot be read.
        """
        last: bool | None = None
        bad = 0  # rows in succession

        def is_talk(row: DataRow) -> bool | None:
            """Return whether to encode a row with conversations, also a bad one between them."""
            nonlocal last, bad
            bad = 0 if row.error is None else bad + 1
            if not bad:
                last = isinstance(row.said[0].what, Talk)
            elif bad > BAD:
                last = None
            return last

        for are_talks, some in groupby(self._said(path, maker), is_talk):
            if are_talks is None:
                yield from some
            else:
                encoded = self._talks if are_talks else self._texts
                yield from encoded(some)

    def _said(self, path: Path, maker: Maker) -> Iterator[DataRow]:
        """Yield the rows of a file, without ids."""
        how, first = self.how, None
        with closing(attempts(path, how.progress, how.columns, how.bounds)) as attempted:
            for place, fields in attempted:
                row = DataRow(place, where_of(path, place))
                try:
                    if isinstance(fields, DataError):
                        raise fields
                    row.fields = fields
                    form, said = maker(row.where, fields)
                    first = first or (form, place)
                    if form != first[0]:
                        raise DataError(
                            f"{row.where}: expected {' and '.join(first[0])}, as "
                            f"{line_of(first[1])} has; got {' and '.join(form)}"
                        )
                    row.said, row.form = tuple(said), form
                except DataError as error:
                    row.error = error
                yield row

    def maker(self, roles: set[str]) -> Maker:
        """Return what makes the sequence of a row of any format; it adds roles to ``roles``."""

        def contents(where: str, row: Fields, form: tuple[str, ...]) -> Iterator[Contents]:
            if form == ("text",):
                text = string_of(where, row, "text")
                begin, end = Said(self._begin(), True), Said(self._end(), True)
                yield Contents([begin, Said(text, True), end])
            elif form == ("messages",):
                yield Contents(self.messages(where, row, roles))
            elif form == ("conversations",):
                yield Contents(self.messages(where, from_sharegpt(where, row), roles))
            elif form == ("prompt", "completion"):
                yield self._completed(where, row, roles)
            else:
                yield Contents(self.completion(where, from_alpaca(where, row)))

        def made(where: str, row: Fields) -> tuple[tuple[str, ...], Iterator[Contents]]:
            form = form_of(where, row)
            return form, contents(where, row, form)

        return made

    def _talks(self, rows: Iterable[DataRow]) -> Iterator[DataRow]:
        """Yield rows of conversations with their ids. After a refused row the next ones follow."""
        rest = iter(rows)
        while True:
            asked: deque[DataRow] = deque()  # rows whose ids are still to come
            made: list[Made] = []
            try:
                for turns in self.encoder.encode_talks(_noted(rest, asked)):
                    yield from _bad(asked)
                    made.append(list(turns))
                    if len(made) == len(asked[0].said):
                        yield self._checked(asked.popleft(), made)
                        made = []
                yield from asked
                return
            except ToynnError as error:  # of the chat template, or of a message
                yield from _bad(asked)
                if not asked:
                    raise
                row = asked.popleft()
                row.error = DataError(f"{row.where}: {error}")
                row.error.__cause__ = error
                yield row
                rest = chain(asked, rest)

    def _texts(self, rows: Iterable[DataRow]) -> Iterator[DataRow]:
        """Yield rows of texts with their ids; many texts are encoded at once."""
        waiting: list[DataRow] = []
        length = 0
        try:
            for row in rows:
                waiting.append(row)
                length += sum(len(part.what) for part in _parts(row))
                if length >= TOGETHER:
                    yield from self._together(waiting)
                    waiting, length = [], 0
        except DataError:  # the file cannot be read to its end
            yield from self._together(waiting)
            raise
        yield from self._together(waiting)

    def _together(self, rows: Sequence[DataRow]) -> Iterator[DataRow]:
        parts = [part for row in rows for part in _parts(row)]
        texts = [(part.what, part.continues) for part in parts if isinstance(part.what, str)]
        encoded = iter(self.encoder.encode_many(texts) if texts else ())
        for row in rows:
            made = [
                [
                    (next(encoded) if isinstance(part.what, str) else part.what, part.trained)
                    for part in each.what
                ]
                for each in row.said
            ]
            yield self._checked(row, made)

    def _checked(self, row: DataRow, made: Sequence[Made]) -> DataRow:
        """Return a row with its ids, or with an error if one is not below the vocabulary's size."""
        every = not self.how.mask_prompt
        try:
            for ids, _ in chain.from_iterable(made):
                check_ids(row.where, ids, self.how.vocab_size)
        except DataError as error:
            row.error = error
        row.made = [
            [(ids, learn or every) for ids, learn in _without_loss(parts, said.skipped)]
            for parts, said in zip(made, row.said, strict=True)
        ]
        return row

    def completion(self, where: str, row: Fields) -> Parts:
        """Return the parts of a row with a prompt and a completion. Raises DataError."""
        prompt, answer = (string_of(where, row, key) for key in ("prompt", "completion"))
        begin, end = Said(self._begin(), False), Said(self._end(), True)
        return [begin, Said(prompt, False), Said(answer, True, True), end]

    def _completed(self, where: str, row: Fields, roles: set[str]) -> Contents:
        """Return a prompt and its completion: texts, or both lists of messages, as TRL has them."""
        prompt, completion = row["prompt"], row["completion"]
        if not (isinstance(prompt, list) and isinstance(completion, list)):
            return Contents(self.completion(where, row))
        talk = self.messages(where, {**row, "messages": [*prompt, *completion]}, roles)
        return Contents(talk, answers(talk.messages[: len(prompt)]))

    def messages(self, where: str, row: Fields, roles: set[str]) -> Talk:
        """Return the conversation of a row; add its roles to ``roles``. Raises DataError."""
        messages = checked_messages(where, checked_calls(where, row["messages"]))
        roles.update(message["role"] for message in messages)
        tools = row.get("tools")
        if tools is not None and not isinstance(tools, list):
            raise DataError(f"{where}: tools: expected a list of tools; got {tools!r:.80}")
        return Talk(messages, tools or None)

    def _begin(self) -> list[int]:
        encoder = self.encoder
        return [encoder.bos] if encoder.add_bos and encoder.bos is not None else []

    def _end(self) -> list[int]:
        return [] if self.encoder.eos is None else [self.encoder.eos]


def answers(messages: Sequence[Mapping[str, Any]]) -> int:
    """Return how many messages are the assistant's."""
    return sum(message["role"] == ASSISTANT for message in messages)


def _noted(rows: Iterator[DataRow], asked: deque[DataRow]) -> Iterator[Any]:
    """Yield the conversations of rows; append the rows to ``asked``."""
    for row in rows:
        asked.append(row)
        yield from (each.what for each in row.said)


def _bad(asked: deque[DataRow]) -> Iterator[DataRow]:
    """Take the bad rows at the beginning."""
    while asked and asked[0].error is not None:
        yield asked.popleft()


def _parts(row: DataRow) -> Iterator[Said]:
    """Yield the parts of a row's texts."""
    for each in row.said:
        yield from each.what


def _without_loss(made: Made, turns: int) -> Made:
    """Return a sequence's parts, without the loss of the first ``turns`` parts that have loss."""
    parts = []
    for ids, trained in made:
        parts.append((ids, trained and not turns))
        turns -= trained and turns > 0
    return parts
