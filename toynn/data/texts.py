"""Texts of files, and the batch of an encoder: packed texts with labels of texts or of tokens."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from types import MappingProxyType
from typing import Any, Self

import numpy as np

from toynn.data._containers import TEXTS, is_container, kind_of
from toynn.data._forms import READ
from toynn.data._rows import rows, string_of, where_of
from toynn.data.batch import IGNORED, Batch
from toynn.data.stream import Progress, blocks, silent
from toynn.errors import DataError, ShapeError
from toynn.system.printing import strings_in

CONTENT = READ - {"label", "tools"}
TOKENS = 4096  # the most tokens in one pass of an encoder, unless one text has more
NAMES = {"role", "from"}  # fields of a message that say whose it is


def read_texts(path: Path, columns: Mapping[str, str] = MappingProxyType({})) -> list[str]:
    """Return the texts of a file: its lines (.txt, .md), or the field text of its rows.

    ``columns`` may name another column for it. Raises DataError, with the line, for a text that is
    missing or blank; for a file without texts.
    """
    texts, columns = [], {**columns, "text": columns.get("text", "text")}
    if kind_of(path) in TEXTS and path.is_file():
        lines = "".join(blocks(path)).replace("\r\n", "\n").removesuffix("\n").split("\n")
        records: Any = enumerate(({"text": line} for line in lines), 1)
    else:
        records = rows(path, silent, columns)
    for place, row in records:
        where = where_of(path, place)
        if not string_of(where, row, "text", empty=True).strip():
            raise DataError(f"{where}: {columns['text']}: expected a text; got an empty one")
        texts.append(row["text"])
    if not texts:
        raise DataError(f"{path}: expected texts; it has none")
    return texts


@dataclass(eq=False)
class Texts(Batch):
    """Texts one after the other. See ``Batch`` for the other fields.

    Attributes
    ----------
    inputs, segments
        Token ids, int (n,), and the index of the first token of each token's text, int (n,).
    labels
        For each of S texts a class, int (S,), or numbers, float (S, K): class probabilities,
        targets, scores. For token classes int (n,), -100 where there is no loss. None: no labels.
    types
        Token types, int (n,); None: all 0.
    """

    types: Any = field(default=None, kw_only=True)

    @classmethod
    def pack(
        cls,
        texts: Sequence[Sequence[int]],
        labels: Any = None,
        types: Iterable[Sequence[int]] | None = None,
    ) -> Self:
        """Return a batch of texts, each the ids of its tokens, with their token types if given.

        Raises ShapeError without texts, and for a text without tokens.
        """
        lengths = [len(text) for text in texts]
        if not lengths or 0 in lengths:
            which = f"text {lengths.index(0)} has none" if lengths else "got no texts"
            raise ShapeError(f"texts: expected texts of at least one token; {which}")
        firsts = np.repeat(np.cumsum([0, *lengths[:-1]]), lengths).astype(np.int32)
        ids = np.concatenate([np.asarray(text, np.int32) for text in texts])
        kinds = None if types is None else np.concatenate([np.asarray(t, np.int32) for t in types])
        return cls(ids, None, labels, firsts, types=kinds)

    @cached_property
    def bounds_of_texts(self) -> Any:
        """The first token of each text, and the end of the last one: int (S + 1,)."""
        first = np.asarray(self.segments)
        starts = np.flatnonzero(first == np.arange(len(first)))
        return np.append(starts, len(first)).astype(np.int32)

    @property
    def spans(self) -> list[tuple[int, int]]:
        """The first token of each text, and the token after its last."""
        bounds = self.bounds_of_texts.tolist()
        return list(pairwise(bounds))

    @cached_property
    def rows(self) -> int:
        """The number of labels with loss; of texts, if labels are numbers or there are none."""
        labels = np.asarray(self.labels)
        if self.labels is None or labels.dtype.kind == "f":
            return self.examples
        return int(np.count_nonzero(labels != IGNORED))


def contents(path: Path, progress: Progress = silent) -> Iterator[str]:
    """Yield all text of a file or folder: of a .txt in blocks, of rows each field that is trained.

    Roles of messages and descriptions of tools are left out. Raises DataError.
    """
    if path.suffix == ".bin" or (path.is_dir() and any(path.glob("*.bin"))):
        raise DataError(f"{path}: it holds tokens already: expected texts")
    if not is_container(path):
        yield from blocks(path, progress)
        return
    for _, row in rows(path, progress):
        for key in sorted(CONTENT & row.keys()):
            each = row[key]
            for part in each if isinstance(each, list) else [each]:
                kept = isinstance(part, Mapping)
                yield from strings_in({k: part[k] for k in part.keys() - NAMES} if kept else part)
