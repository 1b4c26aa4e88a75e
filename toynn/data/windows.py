"""Turn a long text into tokens: a training part, and the end of the text for validation.

The text is read in blocks, and its tokens go into a store. With a store on disk, a text of any
size takes little memory. A .bin file already holds tokens, and is mapped.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from toynn.data import binary
from toynn.data.examples import check_not_asked, tail_length
from toynn.data.reader import Encoder, ReadOptions
from toynn.data.shards import chained
from toynn.data.store import InMemory, Mapped, check_ids
from toynn.data.stream import BOM, blocks, looked_at
from toynn.data.text import Corpus
from toynn.errors import DataError
from toynn.system.reading import Unchanged, open_file

Tokens = NDArray[np.integer[Any]]


@dataclass(frozen=True)
class Source:
    """The name, size and hash of a text; a .bin file has only a name."""

    name: str
    bytes: int | None
    sha256: str | None


@dataclass(frozen=True)
class Windows:
    """Training and validation tokens, and notes for the user."""

    parts: tuple[Tokens, Tokens]
    notes: list[str]
    source: Source
    mapped: Mapped = ()


def read_windows(path: str | Path | None, encoder: Encoder, how: ReadOptions) -> Windows:
    """Read a text; without a path, the one that ships with Python. Raises DataError."""
    seq, vocab_size, store, progress = how.seq, how.vocab_size, how.store, how.progress
    if path is None or store is None:
        corpus = Corpus.embedded() if path is None else Corpus.read(path)
        ids, mapped = InMemory().tokens(
            Path(corpus.name),
            {},
            vocab_size,
            lambda: encoder.encode_blocks([corpus.text.decode()]),
        )
        source = Source(corpus.name, len(corpus.text), corpus.sha256)
        return _split(ids, seq, source, mapped, how.holdout)
    path = Path(path)
    before = Unchanged.of(path)
    sha256, size = looked_at(path)
    if encoder.of_bytes:
        for _ in blocks(path, progress):  # checks that the text is UTF-8
            pass
        ids, mapped = _mapped(path, size), (before,)
        check_ids(f"{path}", ids, vocab_size)
    else:
        key = {"encoder": encoder.fingerprint, "vocab_size": vocab_size}
        fill: Callable[[], Iterable[NDArray[np.int32]]]
        fill = lambda: encoder.encode_blocks(blocks(path, progress))  # noqa: E731
        ids, mapped = store.tokens(path, key, vocab_size, fill)
    before.check()
    return _split(ids, seq, Source(str(path), size, sha256), mapped, how.holdout)


def _mapped(path: Path, size: int) -> Tokens:
    with open_file(path) as file:
        return np.memmap(
            file, np.uint8, "r", len(BOM) if file.read(len(BOM)) == BOM else 0, (size,)
        )


def read_binary(
    path: Path, seq: int, *, vocab_size: int, holdout: float | None = None
) -> Windows | None:
    """Map the tokens in a .bin file, or in a folder of .bin files; None for any other path.

    Shards are one text: a window that begins in one continues in the next. ``holdout``: see
    ReadOptions. Raises DataError.
    """
    single = ([path], list[Path]()) if path.suffix == ".bin" else None
    files = binary.find(path) if path.is_dir() else single
    if files is None:
        return None
    watched = tuple(Unchanged.of(each) for part in files for each in part)
    parts = [[binary.map_tokens(each, vocab_size) for each in part] for part in files]
    for file in watched:
        file.check()
    source = Source(str(path), None, None)
    train = chained(parts[0])
    if not parts[1]:
        windows = _split(train, seq, source, watched, holdout)
        if len(parts[0]) > 1:
            windows.notes[0] += f"; {_shards(files[0])}"
        return windows
    check_not_asked(path, holdout)
    tokens, notes = (train, chained(parts[1])), []
    for each, ids in zip(files, tokens, strict=True):
        name = f"{each[0]}" if len(each) == 1 else f"{path}: {_shards(each)}"
        if len(ids) < seq + 1:
            raise DataError(f"{name}: {len(ids)} tokens are too few for a window of {seq + 1}")
        notes.append(f"{name}: {len(ids):,} tokens")
    if (files[0][0].parent / "meta.pkl").exists():
        notes.append(
            "meta.pkl is not opened, since a pickle can run any code; ids are used as they are"
        )
    return Windows(tokens, notes, source, watched)


def _shards(files: Sequence[Path]) -> str:
    return f"{len(files):,} shards, {files[0].name} to {files[-1].name}"


def _split(ids: Tokens, seq: int, source: Source, mapped: Mapped, holdout: float | None) -> Windows:
    """Split off the tokens for validation: see ``tail_of``."""
    tail, note = tail_of(ids, seq, source, holdout)
    kept = len(ids) - tail
    return Windows((ids[:kept], ids[kept:]), [note], source, mapped)


def tail_of(ids: Tokens, seq: int, source: Source, holdout: float | None = None) -> tuple[int, str]:
    """Return how many of the last tokens are for validation, and a note that says so.

    ``holdout`` is their share if below 1, else their number; 0 means none, None a tenth. Unless
    none, they are at least a window. Raises DataError for too few tokens.
    """
    name, window = source.name, seq + 1
    tail = tail_length(len(ids), holdout, least=window)
    if len(ids) < tail + window:
        both = "training and validation each need a window" if tail else "training needs a window"
        less = " (or hold nothing out: --holdout 0)" if tail and window <= len(ids) else ""
        held = f", besides {tail:,} held out" if tail > window else ""
        raise DataError(
            f"{name}: {len(ids)} tokens are too few: {both} of {window}{held}; use a longer text "
            f"or a shorter sequence{less}"
        )
    rest = f"the last {tail:,} of them for validation" if tail else "none of them held out"
    return tail, f"{name}: {len(ids):,} tokens, {rest}"
