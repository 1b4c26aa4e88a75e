"""Texts that belong together, or not, by the columns that sentence-transformers names.

    anchor, positive                 a text, and one that belongs to it
    anchor, positive, negative       and one that does not; more: negative_1, negative_2, ...
    sentence1, sentence2, score      how alike two texts are, from -1 to 1
    query, passage, label            how well a passage answers a query, from 0 to 1

``read`` returns rows of texts; ``EncodedRows`` has them as tokens. In a batch of it, no text comes
twice: a text that comes again would be a candidate that is wrong and right at once.
"""

import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from toynn.data._containers import plain
from toynn.data._rows import keys_of, rows, string_of, where_of
from toynn.data.bounds import USUAL, Bounds
from toynn.data.stream import Progress, silent
from toynn.data.texts import Texts
from toynn.errors import DataError

PAIRS = ("anchor", "positive")
NEGATIVES = ("negative", *(f"negative_{k}" for k in range(1, 65)))
SCORED = (("sentence1", "sentence2"), ("query", "passage"))
SCORES = ("score", "label")
FIELDS = (*PAIRS, *NEGATIVES, *SCORED[0], *SCORED[1], *SCORES)
LOOKED = 64  # batches of rows that are looked through for rows without a text of the batch


class TextRow(NamedTuple):
    """The texts of a row, their score or None, and the row's place."""

    texts: tuple[str, ...]
    score: float | None
    where: str


@dataclass(frozen=True)
class TextRows:
    """The rows of a file, and the columns that they have."""

    columns: tuple[str, ...]
    rows: Sequence[TextRow]

    @property
    def is_scored(self) -> bool:
        """Whether rows have scores."""
        return self.rows[0].score is not None


def read(
    path: str | Path,
    columns: Mapping[str, str] | None = None,
    *,
    lowest: float = -1.0,
    bounds: Bounds = USUAL,
    progress: Progress = silent,
) -> TextRows:
    """Read a .csv, .tsv, .json(l), .parquet or .arrow file; the first row says which columns.

    ``columns`` has the data's column for each field that has another name there; scores are from
    ``lowest`` to 1. Raises DataError, with file and line, for a row that lacks a text or a score.
    """
    path, table, names = Path(path), list[TextRow](), tuple[str, ...]()
    for place, row in rows(path, progress, columns or {}, bounds, FIELDS):
        where = where_of(path, place)
        names = names or _names(where, row)
        texts = tuple(_text(where, row, name) for name in names)
        if texts[1] in texts[2:]:
            which = names[texts.index(texts[1], 2)]
            raise DataError(f"{where}: {which}: the positive is also a negative: {texts[1]!r:.60}")
        table.append(TextRow(texts, _score(where, row, lowest) if names in SCORED else None, where))
    if not table:
        raise DataError(f"{path}: expected rows with texts; it has none")
    return TextRows(names, table)


def _names(where: str, row: Mapping[str, Any]) -> tuple[str, ...]:
    has = [name for name in FIELDS if row.get(name) is not None]
    forms = [form for form in (PAIRS, *SCORED) if set(form) <= {*has}]
    if len(forms) != 1:
        more = ": keep the columns of one of them" if forms else ""
        raise DataError(
            f"{where}: expected anchor and positive; sentence1, sentence2 and score; or query, "
            f"passage and label; got {keys_of(row)}{more}; if your columns have other names: "
            "--columns anchor=question,positive=answer"
        )
    negatives = [name for name in has if name in NEGATIVES] if forms[0] == PAIRS else []
    return (*forms[0], *negatives)


def _text(where: str, row: Mapping[str, Any], name: str) -> str:
    if row.get(name) is None:
        got = "null" if name in row else keys_of(row)
        raise DataError(f"{where}: {name}: expected a text; got {got}")
    if not (text := string_of(where, row, name)).strip():
        raise DataError(f"{where}: {name}: expected a text; got only spaces")
    return text


def _score(where: str, row: Mapping[str, Any], lowest: float) -> float:
    name = next((name for name in SCORES if row.get(name) is not None), SCORES[0])
    try:
        score = float(row[name])
    except (KeyError, TypeError, ValueError):
        score = math.nan
    if not lowest <= score <= 1:
        got = repr(row[name])[:60] if name in row else keys_of(row)
        advice = "scale the scores to that range"
        if name not in row:
            advice = f"--columns {name}=... names its column"
        expected = f"expected a number from {lowest:g} to 1"
        raise DataError(f"{where}: {name}: {expected}; got {got}: {advice}")
    return score


Places = list[tuple[int, int]]  # rows and columns


def search(keys: Iterable[Sequence[Any]]) -> tuple[list[int], Places, list[set[int]]]:
    """Return what is to be found in rows of keys of texts, of which equal ones are one text.

    Queries are the rows where a first text comes first; texts are the rows and columns where
    another one does; the last are the numbers of the texts that are second ones of each query.
    """
    queries, texts, numbers = list[int](), list[tuple[int, int]](), dict[Any, int]()
    relevant = dict[Any, set[int]]()
    for row, own in enumerate(keys):
        for column, key in enumerate(own[1:], 1):
            if numbers.setdefault(key, len(texts)) == len(texts):
                texts.append((row, column))
        if own[0] not in relevant:
            queries.append(row)
        relevant.setdefault(own[0], set()).add(numbers[own[1]])
    return queries, texts, [*relevant.values()]


def read_search(
    path: str | Path, corpus: str | Path, columns: Mapping[str, str] | None = None
) -> tuple[list[str], list[str], list[set[int]]]:
    """Return queries, the texts of a corpus, and the numbers of each query's relevant texts.

    The corpus has id (or _id), text and perhaps title; ``path`` has query, and relevant: an id or a
    list of them. Raises DataError, with file and line, for a row that lacks one of them.
    """
    path, corpus = Path(path), Path(corpus)
    ids, texts, queries, relevant = dict[str, int](), list[str](), list[str](), list[set[int]]()
    for place, row in rows(corpus, silent, {}, USUAL, ("id", "_id", "title", "text")):
        where, id = where_of(corpus, place), str(row.get("id", row.get("_id", "")))
        if not id or ids.setdefault(id, len(texts)) != len(texts):
            raise DataError(f"{where}: id: expected one that no other text has; got {id!r}")
        texts.append(" ".join(filter(None, [row.get("title"), _text(where, row, "text")])))
    for place, row in rows(path, silent, columns or {}, USUAL, ("query", "relevant")):
        where, given = where_of(path, place), plain(row.get("relevant"))
        queries.append(_text(where, row, "query"))
        named = [str(each) for each in (given if isinstance(given, list) else [given])]
        if not named or not {*named} <= ids.keys():
            raise DataError(f"{where}: relevant: expected ids of texts of {corpus}; got {given!r}")
        relevant.append({ids[id] for id in named})
    if not queries:
        raise DataError(f"{path}: expected queries; it has none")
    return queries, texts, relevant


# -- As tokens ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class EncodedRows:
    """Rows of texts as tokens.

    Attributes
    ----------
    ids
        Of each row: the token ids of its texts.
    keys
        Of each row: a number for each of its texts; the same text has the same number.
    scores
        The rows' scores (n,), or None.
    taught
        A teacher's vector of each text, by its number in ``keys`` (texts, D), or None.
    seq, cut
        The most tokens of a text, and how many texts were cut to it.
    """

    ids: Sequence[Sequence[Sequence[int]]]
    keys: Sequence[tuple[int, ...]]
    scores: NDArray[np.float32] | None = None
    seq: int = 0
    cut: int = 0
    taught: NDArray[np.float32] | None = None

    @classmethod
    def of(
        cls,
        table: TextRows,
        prompts: Mapping[str, str],
        encode: Callable[[Sequence[tuple[str, bool]]], Sequence[Sequence[int]]],
        fit: Callable[..., tuple[list[int], list[int], int]],
        longest: int,
        too_long: str = "cut",
        teach: Callable[[Sequence[str]], NDArray[np.float32]] | None = None,
    ) -> "EncodedRows":
        """Return rows as tokens, each text after the prompt of its column.

        ``teach`` returns a teacher's vectors of texts. ``encode``, ``fit``, ``longest`` and
        ``too_long`` are those of ``labelled.encoded``. Raises DataError for a text without tokens,
        for one that is to be refused, and if none is left.
        """
        prompt = [prompts.get(name, "") for name in table.columns]
        wholes = [tuple(map(str.__add__, prompt, row.texts)) for row in table.rows]
        numbers: dict[str, int] = {}
        keys = [tuple(numbers.setdefault(t, len(numbers)) for t in texts) for texts in wholes]
        tokens, fitted = encode([(text, False) for text in numbers]), []
        for ids in tokens:
            framed, _, over = fit(ids)
            fitted.append((framed, over, not ids))
        kept, cut = list[int](), 0
        for k, (row, key) in enumerate(zip(table.rows, keys, strict=True)):
            over = max(fitted[n][1] for n in key)
            if any(fitted[n][2] for n in key):
                raise DataError(f"{row.where}: the tokenizer finds no token in a text")
            if over and too_long == "refuse":
                raise DataError(
                    f"{row.where}: a text has {longest + over:,} tokens; the most are "
                    f"{longest:,}: shorten it, raise --seq, or see --too-long"
                )
            cut += sum(fitted[n][1] > 0 for n in key)
            if not (over and too_long == "drop"):
                kept.append(k)
        if not kept:
            raise DataError(f"{table.rows[0].where}: every row has a text of more than {longest:,}")
        values = [row.score or 0 for row in table.rows]
        scores = np.array(values, np.float32) if table.is_scored else None
        texts = [[fitted[n][0] for n in key] for key in keys]
        every = cls(texts, keys, scores, longest, cut, teach and teach([*numbers]))
        return every.pick(kept)

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def lengths(self) -> NDArray[np.int64]:
        """The number of tokens of each row's texts together."""
        return np.array([sum(map(len, row)) for row in self.ids])

    @property
    def repeated(self) -> int:
        """How many rows have a second text that an earlier row has as its second."""
        return len(self) - len({row[1] for row in self.keys})

    def pick(self, indices: Iterable[int]) -> "EncodedRows":
        """Return these rows, in this order."""
        chosen = list(indices)
        scores = None if self.scores is None else self.scores[chosen]
        ids, keys = [self.ids[k] for k in chosen], [self.keys[k] for k in chosen]
        return replace(self, ids=ids, keys=keys, scores=scores)

    def batch(self, indices: Iterable[int], room: int = 0) -> Texts:
        """Return these rows as a batch: their first texts, then their second ones, and so on."""
        chosen = list(indices)
        columns = range(len(self.ids[chosen[0]]))
        labels = None if self.scores is None else self.scores[chosen]
        if self.taught is not None:
            labels = self.taught[[self.keys[k][n] for n in columns for k in chosen]]
        return Texts.pack([self.ids[k][n] for n in columns for k in chosen], labels)

    def distinct(self, order: Iterable[int], size: int) -> list[list[int]]:
        """Return the rows in batches of at most ``size``, in each of which no text comes twice.

        A row with a text of the batch waits for the next one. Scored rows wait for nothing.
        """
        batches, waiting = [], deque(order)
        while waiting:
            batch, seen, later = list[int](), set[int](), list[int]()
            while waiting and len(batch) < size and len(later) < LOOKED * size:
                row = waiting.popleft()
                if self.scores is None and not seen.isdisjoint(self.keys[row]):
                    later.append(row)
                    continue
                batch.append(row)
                seen.update(self.keys[row])
            waiting.extendleft(reversed(later))
            batches.append(batch)
        return batches

    def batches(self, size: int) -> list[Texts]:
        """Return all rows in batches, in order but for rows that wait."""
        return [self.batch(rows) for rows in self.distinct(range(len(self)), size)]


class DistinctBatches(Iterator[Texts]):
    """Endless training batches, every row once an epoch, in a new random order."""

    def __init__(self, rows: EncodedRows, batch: int, seed: int) -> None:
        self._rows, self._batch, self._seed = rows, batch, seed
        self._epoch = self._at = 0
        self._now = self._drawn(0)
        self.examples = len(rows)
        #: batches in an epoch; with repeated texts there may be another number in the next
        self.per_epoch = float(len(self._now))

    def _drawn(self, epoch: int) -> list[list[int]]:
        order = np.random.default_rng([self._seed, epoch]).permutation(len(self._rows))
        return self._rows.distinct(order.tolist(), self._batch)

    def __next__(self) -> Texts:
        if self._at == len(self._now):
            self._epoch, self._at = self._epoch + 1, 0
            self._now = self._drawn(self._epoch)
        self._at += 1
        return self._rows.batch(self._now[self._at - 1])

    @property
    def state(self) -> dict[str, Any]:
        """The position: set it again, with the same rows, and the same batches follow."""
        return {"seed": self._seed, "epoch": self._epoch, "at": self._at}

    @state.setter
    def state(self, state: dict[str, Any]) -> None:
        self._seed, self._epoch, self._at = state["seed"], state["epoch"], state["at"]
        self._now = self._drawn(self._epoch)
