"""Texts with labels: rows of tables, of JSON lines, or of CoNLL.

    text, label                 one class a text; or a number
    text, text_pair, label      of two texts
    text, labels                several classes a text: a list, or names with a separator
    words, tags                 a class for each word: lists; CoNLL: a word and its tag in a line
    text, spans                 [begin, end, class] in characters, or objects with these names

``read`` returns them as they are, ``numbered`` with classes as numbers, ``encoded`` as tokens.
"""

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from toynn.data._containers import kind_of, lines_of
from toynn.data._rows import keys_of, rows, string_of, where_of
from toynn.data.batch import IGNORED
from toynn.data.bounds import USUAL, Bounds
from toynn.data.problems import Problem, TooLong
from toynn.data.stream import Progress, silent
from toynn.data.texts import Texts
from toynn.errors import DataError

FIELDS = ("text", "text_pair", "label", "labels", "words", "tags", "spans")
CONLL = (".conll", ".conll2003", ".iob", ".iob2", ".bio")
OUTSIDE = "O"  # the tag of a word in no span
_WORD = re.compile(r"\w+|[^\w\s]")


class Words(NamedTuple):
    """A text as words: what is encoded of each, and where they are in the text, if there is one."""

    pieces: tuple[tuple[str, bool], ...]  # text, and whether it continues the word before
    places: tuple[tuple[int, int], ...] = ()

    @classmethod
    def listed(cls, words: Sequence[str]) -> "Words":
        """Return given words, with a space between them."""
        return cls(tuple((f" {word}" if k else word, k > 0) for k, word in enumerate(words)))


def words_of(text: str) -> Words:
    """Return the words and the punctuation marks of a text."""
    places = tuple(match.span() for match in _WORD.finditer(text))
    spaces = [" " if k and text[begin - 1].isspace() else "" for k, (begin, _) in enumerate(places)]
    spaced = zip(spaces, places, strict=True)
    return Words(tuple((f"{s}{text[a:b]}", a > places[0][0]) for s, (a, b) in spaced), places)


class LabelledText(NamedTuple):
    """A row: a text, two texts or words; its label, as ``Problem`` has it, or None; its place."""

    text: Any
    label: Any
    where: str


@dataclass(frozen=True)
class LabelledTexts:
    """The rows of a file, and what their labels are."""

    problem: Problem
    rows: Sequence[LabelledText]

    @property
    def classes(self) -> tuple[str, ...]:
        """The names of the classes, in the order of first sight; none of numbers."""
        if self.problem == "number":
            return ()
        single = self.problem == "classes"
        names = ([row.label] if single else row.label for row in self.rows if row.label is not None)
        return tuple(dict.fromkeys(chain.from_iterable(names)))


# -- Reading -----------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class HowToRead:
    """How a file of labelled texts is read.

    Attributes
    ----------
    problem
        What labels are; "": as the first row has it.
    columns
        The data's column for each field that has another name there.
    separator
        The text between the names of several classes, if they are not a list.
    names
        The names of classes, if numbers stand for them.
    needs_label
        Whether labels are read, and a row without one is an error.
    """

    problem: Problem | Literal[""] = ""
    columns: Mapping[str, str] = field(default_factory=dict)
    separator: str = ""
    names: Sequence[str] = ()
    needs_label: bool = True
    bounds: Bounds = USUAL
    progress: Progress = silent


def read(path: str | Path, how: HowToRead | None = None) -> LabelledTexts:
    """Read a .csv, .tsv, .json(l), .parquet or .arrow file, CoNLL, or a .txt with a text a line.

    Raises DataError, with file and line, for a row without a text or a label that fits.
    """
    how, texts = how or HowToRead(), list[LabelledText]()
    reader = _Reader(how)
    for row in attempts(Path(path), how, reader):
        if isinstance(row, DataError):
            raise row
        texts.append(row)
    if not texts:
        raise DataError(f"{path}: expected rows with a text and a label; got none")
    return LabelledTexts(reader.problem or "classes", texts)


def attempts(
    path: Path, how: HowToRead, reader: "_Reader | None" = None
) -> Iterator[LabelledText | DataError]:
    """Yield what ``read`` reads; for a bad row, yield its error and go on.

    Raises DataError for a file that cannot be read.
    """
    reader = reader or _Reader(how)
    for place, row in _rows(path, how):
        try:
            yield reader.row(where_of(path, place), row)
        except DataError as error:
            yield error


def _rows(path: Path, how: HowToRead) -> Iterator[tuple[int | str, Mapping[str, Any]]]:
    kind = kind_of(path)
    if path.is_dir() and kind == "":
        raise DataError(
            f"{path}: expected a file of texts (.txt, .csv, .jsonl, .parquet, .conll); got a folder"
        )
    if kind in CONLL:
        return _conll(path, how)
    if kind in (".txt", ""):
        lines = lines_of(path, how.progress, how.bounds)
        return ((n, {"text": _decoded(f"{path}:{n}", raw)}) for n, raw in lines)
    return rows(path, how.progress, how.columns, how.bounds, FIELDS)


def _decoded(where: str, raw: bytes) -> str:
    try:
        return raw.decode().strip()
    except UnicodeDecodeError as error:
        raise DataError(f"{where}: not UTF-8 text: byte 0x{raw[error.start]:02x}") from error


def _conll(path: Path, how: HowToRead) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """Yield the sentences, which blank lines separate: the first and last cell of each line."""
    words, tags, begin, before = list[str](), list[str](), 0, 0
    for line, raw in chain(lines_of(path, how.progress, how.bounds), [(-1, b"")]):
        cells = _decoded(f"{path}:{line}", raw).split()
        if words and (line != before + 1 or cells[0] == "-DOCSTART-"):
            yield begin, {"words": words, "tags": tags}
            words, tags = [], []
        before = line
        if not cells or cells[0] == "-DOCSTART-":
            continue
        if len(cells) < 2:
            raise DataError(f"{path}:{line}: expected a word and its tag; got {cells[0]!r}")
        begin = begin if words else line
        words.append(cells[0])
        tags.append(cells[-1])


class _Reader:
    """Reads rows; the first one says what labels are, if the options do not."""

    def __init__(self, how: HowToRead) -> None:
        self.how = how
        self.problem: Any = how.problem or ("several" if how.separator else "")

    def row(self, where: str, row: Mapping[str, Any]) -> LabelledText:
        """Return a row. Raises DataError."""
        key = next((key for key in ("label", "labels") if row.get(key) is not None), "label")
        label = row.get(key) if self.how.needs_label else None
        keys = ("words", "tags", "spans") if self.how.needs_label else ("words",)
        of_words = any(row.get(each) is not None for each in keys)
        if not self.problem and (of_words or label is not None):
            several = "several" if isinstance(label, list) else "classes"
            self.problem = "tokens" if of_words else several
        if self.problem == "tokens" and (of_words or self.how.needs_label):
            return LabelledText(*self._tagged(where, row), where)
        if "text" not in row:
            raise DataError(
                f"{where}: expected a text and a label; got {keys_of(row)}; if your columns have "
                "other names: --columns text=...,label=..."
            )
        text: Any = string_of(where, row, "text")
        if not text.strip():
            raise DataError(f"{where}: text: expected a text; got only spaces")
        if row.get("text_pair") is not None:
            text = text, string_of(where, row, "text_pair")
        if self.problem == "tokens":
            return LabelledText(words_of(text), None, where)
        if label is None and self.how.needs_label:
            other = "; if its column has another name: --columns label=..."
            got = "null" if key in row else f"{keys_of(row)}{other}"
            raise DataError(f"{where}: {key}: expected a label; got {got}")
        return LabelledText(text, None if label is None else self._label(where, key, label), where)

    def _label(self, where: str, key: str, label: Any) -> Any:
        if self.problem == "number":
            return _number(where, key, label)
        if self.problem == "classes":
            return self._name(where, key, label)
        names = label
        if isinstance(label, str) and self.how.separator:
            names = [name.strip() for name in label.split(self.how.separator) if name.strip()]
        if not isinstance(names, list):
            raise DataError(
                f"{where}: {key}: expected a list of classes, or a text with --separator; got "
                f"{label!r:.60}"
            )
        return list(dict.fromkeys(self._name(where, key, name) for name in names))

    def _name(self, where: str, key: str, label: Any) -> str:
        """Return the name of a class: a text, or a whole number."""
        names = self.how.names
        if isinstance(label, bool):
            label = "true" if label else "false"
        if isinstance(label, int) and str(label) not in names and 0 <= label < len(names):
            label = names[label]
        if not isinstance(label, str | int) or not str(label).strip():
            number = ": for numbers: --problem number" if isinstance(label, float) else ""
            several = ": for several classes a text: --problem several"
            more = several if isinstance(label, list) else number
            raise DataError(
                f"{where}: {key}: expected the name of a class; got {label!r:.60}{more}"
            )
        name = str(label).strip()
        if names and name not in names:
            raise DataError(
                f"{where}: {key}: expected one of {', '.join(map(repr, names[:20]))}; got "
                f"{name!r}, which is new here"
            )
        return name

    def _tagged(self, where: str, row: Mapping[str, Any]) -> tuple[Words, list[str] | None]:
        if (spans := row.get("spans")) is not None and self.how.needs_label:
            if "text" not in row:
                raise DataError(f"{where}: spans: expected a text, too; got {keys_of(row)}")
            text = string_of(where, row, "text")
            words = words_of(text)
            return words, list(self._of_spans(where, text, words, spans))
        listed, tags = row.get("words"), row.get("tags", row.get("labels"))
        if (
            not isinstance(listed, list)
            or not listed
            or not all(isinstance(w, str) for w in listed)
        ):
            raise DataError(
                f"{where}: words: expected a list of words, or a text with spans; got "
                f"{keys_of(row) if listed is None else repr(listed)[:60]}"
            )
        if blank := [k for k, word in enumerate(listed) if not word.strip()]:
            raise DataError(f"{where}: words: word {blank[0]} is empty")
        if not self.how.needs_label:
            return Words.listed(listed), None
        if not isinstance(tags, list) or len(tags) != len(listed):
            got = f"{len(tags)} tags" if isinstance(tags, list) else repr(tags)[:60]
            raise DataError(
                f"{where}: tags: expected a tag for each of {len(listed)} words; got {got}"
            )
        return Words.listed(listed), [self._name(where, "tags", tag) for tag in tags]

    def _of_spans(self, where: str, text: str, words: Words, spans: Any) -> Iterator[str]:
        """Yield the tag of each word: B- and I- of the span that it is in, or O."""
        if not isinstance(spans, list):
            raise DataError(f"{where}: spans: expected a list; got {spans!r:.60}")
        begins = {place[0]: k for k, place in enumerate(words.places)}
        ends = {place[1]: k for k, place in enumerate(words.places)}
        tags = [""] * len(words.places)
        for span in spans:
            if isinstance(span, Mapping):
                span = [span.get("begin", span.get("start")), span.get("end"), span.get("label")]
            kinds = [type(part) for part in span] if isinstance(span, list) else []
            if kinds != [int, int, str]:
                raise DataError(f"{where}: spans: expected [begin, end, class]; got {span!r:.60}")
            begin, end, name = span
            if begin not in begins or end not in ends or ends[end] < begins[begin]:
                raise DataError(
                    f"{where}: spans: [{begin}, {end}, {name!r}] cuts a word or is empty; a span "
                    f"begins and ends with a word of the text of {len(text)} characters"
                )
            inside = range(begins[begin], ends[end] + 1)
            if any(tags[k] for k in inside):
                raise DataError(f"{where}: spans: [{begin}, {end}, {name!r}] overlaps another one")
            for k in inside:
                tags[k] = f"{'I' if k > inside[0] else 'B'}-{name}"
        names = [tag or OUTSIDE for tag in tags]
        yield from (self._name(where, "spans", name) for name in names)


def _number(where: str, key: str, label: Any) -> float:
    try:
        number = math.nan if isinstance(label, bool) else float(label)
    except (TypeError, ValueError):
        number = math.nan
    if not math.isfinite(number):
        raise DataError(f"{where}: {key}: expected a number; got {label!r:.60}")
    return number


# -- As tokens ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class Encoded:
    """Texts as tokens, with their labels as an engine takes them.

    Attributes
    ----------
    ids, types
        Of each text: token ids, token types.
    labels
        Of each text: a class, an array of numbers, or a class for each token; None: no label.
    first
        For token classes: the place of each word's first token, -1 for a word that has none.
    seq
        The most tokens of a text.
    cut
        How many texts were cut to it.
    table, weights
        Dense labels (K, K) by class, smoothed or weighted, and the weights of the classes (K,);
        None: labels stay numbers.
    taught, share
        Of each text, the class probabilities of a teacher (K,), and their share in dense labels.
    """

    ids: Sequence[Sequence[int]]
    types: Sequence[Sequence[int]]
    labels: Sequence[Any]
    first: Sequence[Any] = ()
    seq: int = 0
    cut: int = 0
    table: NDArray[np.float32] | None = None
    weights: NDArray[Any] | None = None
    taught: Sequence[NDArray[np.float32]] = ()
    share: float = 0.0

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def lengths(self) -> NDArray[np.int64]:
        """The number of tokens of each text."""
        return np.fromiter(map(len, self.ids), np.int64, len(self.ids))

    def pick(self, indices: Iterable[int]) -> "Encoded":
        """Return these texts, in this order."""
        chosen = list(indices)
        ids, types, labels = ([x[k] for k in chosen] for x in (self.ids, self.types, self.labels))
        first = [self.first[k] for k in chosen] if self.first else ()
        taught = [self.taught[k] for k in chosen] if len(self.taught) else ()
        return replace(self, ids=ids, types=types, labels=labels, first=first, taught=taught)

    def batch(self, indices: Iterable[int], room: int = 0) -> Texts:
        """Return these texts as a batch."""
        chosen = list(indices)
        ids, types, labels = ([x[k] for k in chosen] for x in (self.ids, self.types, self.labels))
        if labels[0] is None:
            return Texts.pack(ids, None, types)
        joined = np.concatenate(labels) if self.first else np.array(labels)
        if self.table is not None and self.weights is not None:  # their mean is 1 in each batch
            joined = self.table[joined] * np.float32(1 / self.weights[joined].mean())
        if self.share:
            told = np.array([self.taught[k] for k in chosen], np.float32)
            own = np.eye(told.shape[1], dtype=np.float32)[joined]
            joined = np.float32(1 - self.share) * own + np.float32(self.share) * told
        return Texts.pack(ids, joined, types)

    def batches(self, size: int) -> list[Texts]:
        """Return all texts in order, ``size`` in each batch but the last."""
        every = range(len(self))
        return [self.batch(every[k : k + size]) for k in range(0, len(self), size)]


def encoded(
    texts: LabelledTexts,
    classes: Sequence[str],
    encode: Callable[[Sequence[tuple[str, bool]]], Sequence[Sequence[int]]],
    fit: Callable[..., tuple[list[int], list[int], int]],
    longest: int,
    too_long: TooLong = "cut",
) -> Encoded:
    """Return labelled texts as tokens.

    ``encode`` returns the ids of texts, of which some continue the one before. ``fit`` returns ids
    and types of one or two of them with the tokens around, cut to ``longest``, and how many were
    cut. Raises DataError for a text without tokens, and for one that is to be refused.
    """
    number = {name: k for k, name in enumerate(classes)}
    before = fit([-1])[0].index(-1)  # tokens in front of a text
    groups = [_pieces(row.text) for row in texts.rows]
    pieces, cut = iter(encode(list(chain.from_iterable(groups)))), 0
    columns: list[tuple[Any, Any, Any, Any]] = []
    for row, group in zip(texts.rows, groups, strict=True):
        parts: list[Any] = [next(pieces) for _ in group]
        first: Any = None
        if isinstance(row.text, Words):
            whole = list(chain.from_iterable(parts))
            ids, types, over = fit(whole)
            begins, sizes = np.cumsum([0, *map(len, parts)])[:-1], np.array([*map(len, parts)])
            has = (sizes > 0) & (begins < len(whole) - over)
            first = np.where(has, begins + before, -1)
        else:
            ids, types, over = fit(*parts)
        if not any(parts):
            raise DataError(f"{row.where}: text: the tokenizer finds no token in it")
        if over and too_long == "refuse":
            raise DataError(
                f"{row.where}: the text has {longest + over:,} tokens; the most are {longest:,}: "
                "shorten it, raise --seq, or see --too-long"
            )
        cut += over > 0
        if not (over and too_long == "drop"):
            label = _as_numbers(row.label, texts.problem, number, first, len(ids))
            columns.append((ids, types, label, first))
    if not columns:
        raise DataError(f"{texts.rows[0].where}: every text has more than {longest:,} tokens")
    ids_of, types_of, labels, firsts = map(list, zip(*columns, strict=True))
    of_words = texts.problem == "tokens"
    return Encoded(ids_of, types_of, labels, firsts if of_words else (), longest, cut)


def _pieces(text: Any) -> Sequence[tuple[str, bool]]:
    if isinstance(text, Words):
        return text.pieces
    return [(part, False) for part in ([text] if isinstance(text, str) else text)]


def _as_numbers(
    label: Any, problem: Problem, number: Mapping[str, int], first: Any, size: int
) -> Any:
    """Return a label as ``Encoded`` has it; of words only their first tokens have one."""
    if label is None:
        return None
    if problem == "classes":
        return number[label]
    if problem == "number":
        return np.array([label], np.float32)
    if problem == "several":
        return np.array([name in label for name in number], np.float32)
    codes = np.full(size, IGNORED, np.int32)
    codes[first[first >= 0]] = [number[tag] for tag, k in zip(label, first, strict=True) if k >= 0]
    return codes
