"""Turn the rows of a file into tokens, in parts with and without loss, on all cores."""

from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from toynn.data._containers import texts_note
from toynn.data._forms import checked_calls, from_alpaca, from_sharegpt
from toynn.data._rows import checked_messages, form_of, line_of, rows, string_of, where_of
from toynn.data.bounds import USUAL, Bounds
from toynn.data.examples import Examples
from toynn.data.store import FillExamples, InMemory, Store, Watched, check_ids
from toynn.data.stream import Progress, silent
from toynn.errors import DataError, ToynnError
from toynn.system.printing import counted

__all__ = [
    "ASSISTANT",
    "TOGETHER",
    "Encoder",
    "Made",
    "Maker",
    "Parts",
    "ReadOptions",
    "Reader",
    "Said",
    "Talk",
    "without_loss",
]

ASSISTANT = "assistant"
CLASSES = {"label", "labels"}  # keys of classes, which training on text does not read
TOGETHER = 2**18  # characters that are encoded at once


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


class Completed(Talk):
    """A conversation of which only a completion has loss."""

    skipped: int  # messages of the assistant before it


Row = Mapping[str, Any]
#: Functions of a row's place and the row: its contents, and the keys of its format.
Maker = Callable[[str, Row], Parts | Talk]
FormOf = Callable[[str, Any], tuple[str, ...]]

Made = list[tuple[Sequence[int], bool]]  # ids of parts, and whether they have loss


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
        said = f"{path}: {counted(len(examples), 'example')}, {counted(labels, 'token')} with loss"
        if cut:
            end = "the last " if self.how.keep_end else ""
            said += f"; {cut:,} cut to {end}{self.how.seq:,} tokens"
        if dropped:
            said += f"; {dropped:,} dropped: no token with loss was left"
        if classes := facts.get("classes"):  # a cache may be older
            said += (
                f"; {' and '.join(classes)} not read: to learn a class, write it as a completion"
            )
        if not len(examples):
            if self.roles and ASSISTANT not in self.roles:
                roles = ", ".join(sorted(self.roles))
                raise DataError(
                    f"{said}; expected messages of the role {ASSISTANT}, which have loss; got the "
                    f"roles {roles}"
                )
            raise DataError(f"{said}; use a longer sequence, or shorter prompts")
        if path.is_dir():
            said += f"; {texts_note(path)}"
        self.notes.append(said)
        return examples

    def stored(
        self, path: Path, told: dict[str, Any], fill: FillExamples
    ) -> tuple[Examples, dict[str, Any]]:
        """Return a file's examples from the store; ``told`` and the options are their key."""
        told = told | {"encoder": self.encoder.fingerprint, "vocab_size": self.how.vocab_size}
        told |= {"columns": dict(self.how.columns)} if self.how.columns else {}
        told |= {
            "seq": self.how.seq,
            "keep_end": self.how.keep_end,
            "mask_prompt": self.how.mask_prompt,
        }
        empty = Examples(self.how.seq, keep_end=self.how.keep_end)
        examples, facts, mapped = self.how.kept_in.examples(path, told, empty, fill)
        self.mapped += mapped
        return examples, facts

    def _fill(self, path: Path, examples: Examples) -> dict[str, Any]:
        """Read all lines of a file into examples."""
        roles: set[str] = set()
        classes: set[str] = set()
        with closing(self.encoded(self._said(path, roles, classes))) as encoded:
            for made in encoded:
                examples.append(made)
        counts = {name: getattr(examples, name) for name in ("labels", "cut", "dropped")}
        return {**counts, "roles": sorted(roles), "classes": sorted(classes)}

    def _said(
        self, path: Path, roles: set[str], classes: set[str]
    ) -> Iterator[tuple[str, Parts | Talk]]:
        """Yield the place and the contents of each line of a file; add keys of classes."""
        forms = self.forms(roles)
        for where, row, form in self.rows(path, form_of):
            classes.update(CLASSES & row.keys())
            yield where, forms[form](where, row)

    def rows(self, path: Path, form_of: FormOf) -> Iterator[tuple[str, Row, tuple[str, ...]]]:
        """Yield each line's place, the line, and the keys of its format; all lines have one format.

        Raises DataError for a line of another format, and for a file without lines.
        """
        first: tuple[tuple[str, ...], int | str] | None = None
        for line, row in rows(path, self.how.progress, self.how.columns, self.how.bounds):
            where = where_of(path, line)
            form = form_of(where, row)
            if first is None:
                first = form, line
            elif form != first[0]:
                raise DataError(
                    f"{where}: expected {' and '.join(first[0])}, as {line_of(first[1])} has; "
                    f"got {' and '.join(form)}"
                )
            yield where, row, form
        if first is None:
            raise DataError(f"{path}: expected a JSON object per line; got none")

    def forms(self, roles: set[str]) -> dict[tuple[str, ...], Maker]:
        """Return a function for each format that returns a row's contents.

        The functions add roles of messages to ``roles``, and raise DataError for malformed rows.
        """
        return {
            ("prompt", "completion"): lambda where, row: self._completed(where, row, roles),
            ("messages",): lambda where, row: self._messages(where, row, roles),
            ("text",): self._text,
            ("conversations",): lambda where, row: self._messages(
                where, from_sharegpt(where, row), roles
            ),
            ("instruction", "output"): lambda where, row: self._completion(
                where, from_alpaca(where, row)
            ),
        }

    def encoded(self, said: Iterable[tuple[str, Parts | Talk]]) -> Generator[Made, None, None]:
        """Yield each line as parts: ids, and whether they have loss. Uses all cores.

        All lines before the first bad line are yielded, then its error is raised. Raises DataError,
        and what ``said`` raises.
        """
        for are_talks, some in groupby(said, lambda each: isinstance(each[1], Talk)):
            if are_talks:
                yield from self._talks(some)
            else:
                yield from self._texts(some)

    def _talks(self, said: Iterable[tuple[str, Any]]) -> Iterator[Made]:
        """Yield the ids of conversations."""
        asked: deque[tuple[str, int]] = deque()  # of the talks whose ids are still to come

        def talks() -> Iterator[Talk]:
            for where, talk in said:
                asked.append((where, talk.skipped if isinstance(talk, Completed) else 0))
                yield talk

        many = iter(self.encoder.encode_talks(talks()))
        while True:
            try:
                turns = next(many, None)
            except ToynnError as error:  # of the chat template, or of a message
                if asked:
                    raise DataError(f"{asked[0][0]}: {error}") from error
                raise
            if turns is None:
                return
            where, skipped = asked.popleft()
            made = without_loss(turns, skipped)
            yield [self._checked(where, ids, trained) for ids, trained in made]

    def _texts(self, said: Iterable[tuple[str, Any]]) -> Iterator[Made]:
        """Yield the ids of texts; many texts are encoded at once."""
        waiting: list[tuple[str, Parts]] = []
        length = 0
        try:
            for where, parts in said:
                waiting.append((where, parts))
                length += sum(len(part.what) for part in parts)
                if length >= TOGETHER:
                    yield from self._together(waiting)
                    waiting, length = [], 0
        except DataError:
            yield from self._together(waiting)
            raise
        yield from self._together(waiting)

    def _together(self, said: Sequence[tuple[str, Parts]]) -> Iterator[Made]:
        texts = [
            (part.what, part.continues)
            for _, parts in said
            for part in parts
            if isinstance(part.what, str)
        ]
        encoded = iter(self.encoder.encode_many(texts) if texts else ())
        for where, parts in said:
            yield [
                self._checked(
                    where,
                    next(encoded) if isinstance(part.what, str) else part.what,
                    part.trained,
                )
                for part in parts
            ]

    def _checked(self, where: str, ids: Sequence[int], trained: bool) -> tuple[Sequence[int], bool]:
        check_ids(where, ids, self.how.vocab_size)
        return ids, trained or not self.how.mask_prompt

    def _text(self, where: str, row: Mapping[str, Any]) -> Parts:
        text = string_of(where, row, "text")
        return [Said(self._begin(), True), Said(text, True), Said(self._end(), True)]

    def _completion(self, where: str, row: Mapping[str, Any]) -> Parts:
        prompt, answer = (string_of(where, row, key) for key in ("prompt", "completion"))
        begin, end = Said(self._begin(), False), Said(self._end(), True)
        return [begin, Said(prompt, False), Said(answer, True, True), end]

    def _completed(self, where: str, row: Mapping[str, Any], roles: set[str]) -> Parts | Talk:
        """Return a prompt and its completion: texts, or both lists of messages, as TRL has them."""
        prompt, completion = row["prompt"], row["completion"]
        if not (isinstance(prompt, list) and isinstance(completion, list)):
            return self._completion(where, row)
        talk = Completed(*self._messages(where, {**row, "messages": [*prompt, *completion]}, roles))
        before = talk.messages[: len(prompt)]
        talk.skipped = sum(each["role"] == ASSISTANT for each in before)
        return talk

    def _messages(self, where: str, row: Mapping[str, Any], roles: set[str]) -> Talk:
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


def without_loss(made: Sequence[tuple[Sequence[int], bool]], turns: int) -> Made:
    """Return a sequence's parts, without the loss of the first ``turns`` parts that have loss."""
    parts = []
    for ids, trained in made:
        parts.append((ids, trained and not turns))
        turns -= trained and turns > 0
    return parts
