"""Digests that tell whether files have changed: SHA-256 of their bytes."""

import hashlib
import os
from contextlib import suppress
from functools import lru_cache
from pathlib import Path

from toynn.data._containers import TEXTS, texts
from toynn.data.splits import SPLITS, files_of, part_of
from toynn.errors import DataError
from toynn.system import platform
from toynn.system.reading import readable


def digest(path: str | os.PathLike[str]) -> str:
    """Return the SHA-256 of a file; for several files or a folder, of names and bytes.

    Shards in data/, as on the hub, are included; texts next to shards are not. A folder with
    neither train.jsonl (train.parquet, ...) nor shards is a tree of texts: all texts below are
    included. Raises DataError if a file cannot be read.
    """
    path = Path(path)
    with readable(path):
        if path.is_dir():
            root, files = path, sorted(_files_in(path))
        elif (files := files_of(path)) == [path]:
            return _of_file(path)
        else:
            root = path.parent
        whole = hashlib.sha256()
        for each in files:
            name = os.fsencode(each.relative_to(root))
            whole.update(name + b"\0" + _of_file(each).encode())
        return whole.hexdigest()


def listing(folder: str | os.PathLike[str]) -> str:
    """Return the SHA-256 of the names and lengths of all files below a folder.

    Raises DataError if it cannot be read.
    """
    whole, root = hashlib.sha256(), Path(folder)
    with readable(folder):
        for path in sorted(root.rglob("*")):
            if path.is_file():
                name = os.fsencode(path.relative_to(root))
                whole.update(name + b"\0%d\0" % path.stat().st_size)
    return whole.hexdigest()


def _files_in(folder: Path) -> set[Path]:
    shown = {each for each in folder.iterdir() if each.is_file() and each.name[0] != "."}
    parts: list[Path | None] = []
    with suppress(DataError):  # a folder that is not data, such as a model's
        parts = [part_of(folder, name) for name in SPLITS]
    named = any(each.name.startswith("train.") for each in shown)
    if not named and not any(parts[:1]):
        return shown.union(texts(folder))
    if not named:
        shown = {each for each in shown if each.suffix not in TEXTS}
    return shown.union(*(files_of(part) for part in parts if part is not None))


def _of_file(path: Path) -> str:
    """Return the SHA-256 of a file; it is read again only if its state has changed."""
    status = os.stat(path)
    return _sha256(path, (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns))


@lru_cache(maxsize=4096)
def _sha256(path: Path, state: tuple[int, ...]) -> str:
    with open(platform.read_file(path), "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
