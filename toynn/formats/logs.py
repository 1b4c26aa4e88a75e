"""Append to files line by line; a file never ends with a partial line.

    log = Log(path)
    log.append({"iteration": 10, "train_loss": 2.5})      # one object of JSON on a line

Each line is written at once, so that others can follow the file. It is written whole or not at all.
"""

import errno
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

from toynn.errors import CheckpointError
from toynn.formats import disk
from toynn.formats.files import free_space


class Log:
    """A file of JSON lines to append to, after its first ``keep`` bytes, or after all.

    Raises CheckpointError if it cannot be opened.
    """

    def __init__(self, path: Path, keep: int | None = None) -> None:
        self._path = path
        with self._named():
            self._file = path.open("ab", buffering=0)
            if keep is not None and keep < self.length:
                self._file.truncate(keep)

    @property
    def length(self) -> int:
        """The file's length in bytes."""
        return os.fstat(self._file.fileno()).st_size

    def append(self, entries: Mapping[str, Any]) -> None:
        """Append a line.

        Raises CheckpointError if the disk is full or the file is gone; no part of the line is left.
        """
        line = json.dumps(entries, allow_nan=False).encode() + b"\n"
        before = self.length
        with self._named():
            try:
                if not os.path.samestat(os.fstat(self._file.fileno()), os.stat(self._path)):
                    raise OSError(errno.ESTALE, "another file has its name")
                while line:
                    line = line[disk.write(self._file.fileno(), line) :]
            except BaseException:
                self._file.truncate(before)
                raise

    def sync(self) -> None:
        """Wait until all lines are on the disk. Raises CheckpointError."""
        with self._named():
            disk.sync(self._file.fileno())

    @contextmanager
    def _named(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise CheckpointError(
                f"{self._path}: cannot write ({free_space(self._path.parent)}): "
                f"{error.strerror or error}"
            ) from error

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()
