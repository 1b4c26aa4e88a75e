"""Data for fine-tuning: a folder of train.jsonl, valid.jsonl and test.jsonl, a .jsonl, or a .txt.

Every line of a .jsonl is an object, and all of a file have one form:

    {"text": "..."}                                             all of it is learned
    {"prompt": "...", "completion": "..."}                      the completion is learned
    {"messages": [{"role": "user", "content": "..."}, ...]}     what the assistant says is learned

Other keys are ignored, and blank lines. A text and a completion end with EOS; the names of special
tokens in them are plain text. These are the forms and file names that mlx-lm reads, too. A .txt is
one long text, read in windows.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn, Protocol

import numpy as np
from numpy.typing import NDArray

from toynn.data.batch import Batch, PackedBatch
from toynn.data.examples import Examples, ShuffledExamples, examples_in_order
from toynn.data.packing import PackedExamples, packed_in_order
from toynn.data.text import BOM, Corpus, RandomWindows, spaced_windows
from toynn.errors import DataError, ToynnError
from toynn.reading import open_file

__all__ = ["Dataset", "Encoder", "prompts", "read", "read_all", "windows"]

TRAIN, VALID, TEST = "train.jsonl", "valid.jsonl", "test.jsonl"
FORMS = (("prompt", "completion"), ("messages",), ("text",))
ASSISTANT = "assistant"
ACCEPTED = "text, prompt and completion, or messages"
KINDS = f"a folder with {TRAIN}, a .jsonl file (one JSON object per line), or a .txt file"

Tokens = NDArray[np.int32]
Parts = Sequence[tuple[Sequence[int], bool]]


class Encoder(Protocol):
    """What turns texts into ids: a tokenizer."""

    @property
    def bos(self) -> int | None:
        """The token that begins a text."""

    @property
    def eos(self) -> int | None:
        """The token that ends a text."""

    @property
    def add_bos(self) -> bool:
        """Whether a text begins with BOS."""

    def encode(self, text: str, add_special: bool, *, continues: bool = False) -> Sequence[int]:
        """Return the ids of a text; with `continues`, of one that follows another."""

    def encode_array(self, text: str) -> Tokens:
        """Return the ids of a long text."""

    def encode_turns(
        self, messages: Sequence[Mapping[str, Any]]
    ) -> Sequence[tuple[list[int], bool]]:
        """Return the ids of a conversation in parts, and whether the assistant says them."""


@dataclass(frozen=True)
class Dataset:
    """What there is to learn from: examples, or a long text; and what became of them on the way."""

    train: Examples | Tokens
    valid: Examples | Tokens
    test: Examples | None
    seq: int
    notes: list[str]  # lines to be told
    chats: bool = False  # whether the examples are conversations
    packing: bool = False  # whether a row of a batch is several examples

    def batches(self, batch: int, seed: int) -> PackedExamples | ShuffledExamples | RandomWindows:
        """Return endless training batches, with a `state` to go on from."""
        if not isinstance(self.train, Examples):
            return RandomWindows(self.train, batch, self.seq, seed)
        if self.packing:
            return PackedExamples(self.train, batch, seed)
        return ShuffledExamples(self.train, batch, seed)

    def valid_batches(self, batch: int, max_batches: int) -> Sequence[Batch | PackedBatch]:
        """Return the same validation batches each time."""
        if isinstance(self.valid, Examples):
            return self._in_order(self.valid, batch, max_batches)
        return spaced_windows(self.valid, batch, self.seq, max_batches)

    def test_batches(self, batch: int) -> list[PackedBatch]:
        """Return all of the test part; none where there is no such part."""
        return [] if self.test is None else self._in_order(self.test, batch)

    def _in_order(
        self, part: Examples, batch: int, max_batches: int | None = None
    ) -> list[PackedBatch]:
        order = packed_in_order if self.packing else examples_in_order
        return order(part, batch, max_batches)


def read(
    path: str | Path,
    encoder: Encoder,
    seq: int,
    *,
    vocab_size: int,
    seed: int = 0,
    mask_prompt: bool = True,
    keep_end: bool = False,
    packing: bool = False,
) -> Dataset:
    """Read data for windows of seq tokens. Raises DataError, with file and line.

    Where no example is as long the windows are shorter: as long as the longest, or, where examples
    share them (``packing``), as all together. Ids must be below vocab_size, the model's. Without a
    valid.jsonl a tenth of the training examples, drawn by the seed, becomes the validation part.
    mask_prompt=False learns all tokens. What is too long loses its end; with ``keep_end``, its
    beginning.
    """
    path = Path(path)
    if path.suffix == ".txt" and not path.is_dir():
        return windows(Corpus.read(path), encoder, seq, vocab_size=vocab_size)
    reader = _Reader(encoder, seq, vocab_size, mask_prompt, keep_end)
    if path.is_dir():
        if not (path / TRAIN).is_file():
            names = sorted(entry.name for entry in path.iterdir())
            found = ", ".join(names[:5]) + (", ..." if len(names) > 5 else "")
            raise DataError(f"{path}: expected {TRAIN} in it; got {found or 'an empty folder'}")
        train = reader.read(path / TRAIN)
        valid, test = (
            reader.read(path / name) if (path / name).exists() else None for name in (VALID, TEST)
        )
    elif path.suffix in (".jsonl", ".json") or not path.exists():
        train, valid, test = reader.read(path), None, None
    else:
        raise DataError(f"{path}: expected {KINDS}; got a {path.suffix or 'nameless'} file")
    if valid is None:
        train, valid = _split(path, train, seed)
        reader.notes.append(
            f"no {VALID}: {len(valid):,} of {len(train) + len(valid):,} examples of the training "
            f"data became the validation part"
        )
    parts = [part for part in (train, valid, test) if part is not None]
    needed = max(int(part.lengths.sum()) if packing else part.longest for part in parts)
    seq = min(seq, needed)
    for part in parts:
        part.seq = seq
    return Dataset(train, valid, test, seq, reader.notes, bool(reader.roles), packing)


def read_all(
    path: str | Path, encoder: Encoder, seq: int, *, vocab_size: int, mask_prompt: bool = True
) -> tuple[Examples, list[str]]:
    """Read all examples of one .jsonl file, none held out; and what became of them on the way.

    Raises DataError as ``read`` does.
    """
    reader = _Reader(encoder, seq, vocab_size, mask_prompt)
    return reader.read(Path(path)), reader.notes


def prompts(path: str | Path) -> Iterator[tuple[str, str | list[dict[str, Any]]]]:
    """Yield where each prompt of a .jsonl file is, and the prompt: a text, or messages.

    A line has the key "prompt", or "messages". Raises DataError, with file and line.
    """
    for line, row in _rows(Path(path)):
        where = f"{path}:{line}"
        if ("prompt" in row) == ("messages" in row):
            raise DataError(f"{where}: expected prompt, or messages; got {_keys(row)}")
        if "prompt" in row:
            yield where, _string(where, row, "prompt")
        else:
            yield where, _checked_messages(where, row["messages"])


def windows(corpus: Corpus, encoder: Encoder, seq: int, *, vocab_size: int) -> Dataset:
    """Return windows of seq tokens of a text, those of its last tenth for validation.

    Raises DataError if the text is too short, or an id is no token of the vocabulary.
    """
    name, ids = corpus.name, encoder.encode_array(corpus.text.decode())
    window = seq + 1
    if len(ids) < 2 * window:
        raise DataError(
            f"{name}: {len(ids)} tokens are too few: training and validation each need a window "
            f"of {window}; use a longer text or a shorter sequence"
        )
    _check_ids(name, ids, vocab_size)
    tail = max(len(ids) // 10, window)
    note = f"{name}: {len(ids):,} tokens, the last {tail:,} of them for validation"
    return Dataset(ids[:-tail], ids[-tail:], None, seq, [note])


def _split(path: Path, examples: Examples, seed: int) -> tuple[Examples, Examples]:
    """Split off a tenth, one example at least; both parts keep their order."""
    count = len(examples)
    if count < 2:
        raise DataError(
            f"{path}: expected at least 2 examples, one to learn from and one to validate with; "
            f"got {count}: add examples, or a folder with a {VALID}"
        )
    order = np.random.default_rng(seed).permutation(count)
    tail = max(count // 10, 1)
    return examples.pick(sorted(order[tail:].tolist())), examples.pick(
        sorted(order[:tail].tolist())
    )


class _Reader:
    """Reads files of one data set."""

    def __init__(
        self,
        encoder: Encoder,
        seq: int,
        vocab_size: int,
        mask_prompt: bool,
        keep_end: bool = False,
    ) -> None:
        self.encoder, self.seq, self.vocab_size = encoder, seq, vocab_size
        self.mask_prompt, self.keep_end = mask_prompt, keep_end
        self.notes: list[str] = []
        self.roles: set[str] = set()  # in conversations

    def read(self, path: Path) -> Examples:
        """Read a file; note what was cut and dropped."""
        examples = Examples(self.seq, keep_end=self.keep_end)
        forms: dict[tuple[str, ...], Callable[[str, Mapping[str, Any]], Parts]] = {
            ("prompt", "completion"): self._completion,
            ("messages",): self._messages,
            ("text",): self._text,
        }
        first: tuple[tuple[str, ...], int] | None = None
        for line, row in _rows(path):
            where = f"{path}:{line}"
            form = _form(where, row)
            if first is None:
                first = form, line
            elif form != first[0]:
                raise DataError(
                    f"{where}: expected {' and '.join(first[0])}, as line {first[1]} has; "
                    f"got {' and '.join(form)}"
                )
            parts = forms[form](where, row)
            for ids, _ in parts:
                _check_ids(where, ids, self.vocab_size)
            examples.append(parts if self.mask_prompt else [(ids, True) for ids, _ in parts])
        if first is None:
            raise DataError(
                f"{path}: expected a JSON object per line; got no line that is not blank"
            )
        said = f"{path}: {len(examples):,} examples, {examples.labels:,} tokens to learn"
        if examples.cut:
            end = "the last " if self.keep_end else ""
            said += f"; {examples.cut:,} were cut to {end}{self.seq + 1:,} tokens"
        if examples.dropped:
            said += f"; {examples.dropped:,} were dropped: nothing to learn was left in them"
        if not len(examples):
            if self.roles and ASSISTANT not in self.roles:
                roles = ", ".join(sorted(self.roles))
                raise DataError(
                    f"{said}; expected messages of the role {ASSISTANT}, whose words are learned; "
                    f"got those of {roles}"
                )
            raise DataError(f"{said}; use a longer sequence, or shorter prompts")
        self.notes.append(said)
        return examples

    def _text(self, where: str, row: Mapping[str, Any]) -> Parts:
        ids = self.encoder.encode(_string(where, row, "text"), False)
        return [(self._begin(), True), (ids, True), (self._end(), True)]

    def _completion(self, where: str, row: Mapping[str, Any]) -> Parts:
        prompt = self.encoder.encode(_string(where, row, "prompt"), False)
        answer = self.encoder.encode(_string(where, row, "completion"), False, continues=True)
        return [(self._begin(), False), (prompt, False), (answer, True), (self._end(), True)]

    def _messages(self, where: str, row: Mapping[str, Any]) -> Parts:
        messages = _checked_messages(where, row["messages"])
        self.roles.update(message["role"] for message in messages)
        try:
            return self.encoder.encode_turns(messages)
        except ToynnError as error:  # the chat template's, most often
            raise DataError(f"{where}: {error}") from error

    def _begin(self) -> list[int]:
        encoder = self.encoder
        return [encoder.bos] if encoder.add_bos and encoder.bos is not None else []

    def _end(self) -> list[int]:
        return [] if self.encoder.eos is None else [self.encoder.eos]


def _checked_messages(where: str, messages: Any) -> list[dict[str, Any]]:
    """Return messages that each have a role and a content."""
    if not isinstance(messages, list) or not messages:
        got = "an empty list" if messages == [] else _kind(messages)
        raise DataError(f"{where}: messages: expected a list of messages; got {got}")
    for index, message in enumerate(messages):
        if not isinstance(message, dict):
            raise DataError(
                f"{where}: message {index}: expected an object with role and content; "
                f"got {_kind(message)}"
            )
        for key in ("role", "content"):
            if key not in message:
                raise DataError(
                    f"{where}: message {index}: expected role and content; got {_keys(message)}"
                )
            _string(f"{where}: message {index}", message, key, empty=key == "content")
    return messages


def _rows(path: Path) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """Yield the number and the object of each line that is not blank."""
    try:
        with open_file(path) as file:
            for line, raw in enumerate(file, 1):
                if line == 1:
                    raw = raw.removeprefix(BOM)
                if raw.strip():
                    yield line, _row(path, line, raw)
    except OSError as error:
        raise DataError(f"{path}: cannot read: {error.strerror or error}") from error


def _row(path: Path, line: int, raw: bytes) -> Mapping[str, Any]:
    where = f"{path}:{line}"
    try:
        row = json.loads(raw.decode().rstrip())
    except UnicodeDecodeError as error:
        raise DataError(
            f"{where}: not UTF-8 text: byte 0x{raw[error.start]:02x} at byte {error.start} of the "
            f"line ({error.reason})"
        ) from error
    except json.JSONDecodeError as error:
        if line == 1 and raw.lstrip().startswith(b"["):
            _refuse_array(where)
        raise DataError(f"{where}: not JSON: {error.msg} at column {error.colno}") from error
    except RecursionError:
        raise DataError(f"{where}: not JSON that can be read: nested too deep") from None
    except ValueError:
        raise DataError(f"{where}: not JSON that can be read: a number is too long") from None
    if isinstance(row, dict):
        return row
    if isinstance(row, list) and line == 1:
        _refuse_array(where)
    raise DataError(f"{where}: expected an object with {ACCEPTED}; got {_kind(row)}")


def _refuse_array(where: str) -> NoReturn:
    raise DataError(
        f"{where}: expected a JSON object on each line; got a JSON array: write its objects one "
        f"per line, without the commas and brackets around them"
    )


def _form(where: str, row: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the keys by which a row is to be read."""
    forms = [form for form in FORMS if all(key in row for key in form)]
    if len(forms) == 1:
        return forms[0]
    got = _keys(row)
    if forms:
        got += ", which could be read in more than one way"
    raise DataError(f"{where}: expected {ACCEPTED}; got {got}")


def _keys(row: Mapping[str, Any]) -> str:
    return ", ".join(map(repr, list(row)[:8])) or "an empty object"


def _string(where: str, row: Mapping[str, Any], key: str, *, empty: bool = False) -> str:
    """Return a text that a row must have."""
    text = row[key]
    if not isinstance(text, str):
        raise DataError(f"{where}: {key}: expected a text; got {_kind(text)}")
    if not text and not empty:
        raise DataError(f"{where}: {key}: expected a text; got an empty one")
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise DataError(
                f"{where}: {key}: expected Unicode text; got half of a surrogate pair, "
                f"{text[error.start]!a}, at character {error.start}"
            ) from error
    return text


def _kind(value: object) -> str:
    """Return what JSON calls a value."""
    names = {dict: "an object", list: "an array", str: "a string", bool: "a boolean"}
    return "null" if value is None else names.get(type(value), "a number")


def _check_ids(where: str, ids: Sequence[int] | Tokens, vocab_size: int) -> None:
    if not len(ids):
        return
    values = np.asarray(ids)
    low, high = int(values.min()), int(values.max())
    if low < 0 or high >= vocab_size:
        raise DataError(
            f"{where}: expected token ids of 0..{vocab_size - 1}; got {low if low < 0 else high}: "
            f"the tokenizer is not the model's"
        )
