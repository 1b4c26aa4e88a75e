"""Open regular files for reading: never a pipe or device, which might block.

``Unchanged`` detects changes of files that stay mapped.
"""

import errno
import io
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from toynn.errors import DataError, ToynnError
from toynn.system import platform

_KINDS = {
    stat.S_IFIFO: "a pipe; write its output to a file first",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFSOCK: "a socket",
    stat.S_IFLNK: "a symbolic link",
}


@contextmanager
def readable(path: object, error: type[ToynnError] = DataError) -> Iterator[None]:
    """Turn an OSError in the block into ``error`` with the path."""
    try:
        yield
    except OSError as failure:
        raise error(f"{path}: cannot read: {failure.strerror or failure}") from failure


@dataclass(frozen=True)
class Unchanged:
    """The identity and state of a file; ``error`` is raised if they have changed.

    Size and modification time are compared, not the bytes.
    """

    path: Path
    identity: tuple[int, int]  # device and inode
    size: int
    time: int  # of the last change, in nanoseconds
    error: type[ToynnError] = DataError

    @classmethod
    def of(
        cls,
        path: str | os.PathLike[str],
        error: type[ToynnError] = DataError,
        *,
        file: io.BufferedReader | None = None,
    ) -> "Unchanged":
        """Record the state of a path, or of an open ``file``. Raises ``error`` if it is missing."""
        try:
            status = os.stat(path) if file is None else os.fstat(file.fileno())
        except OSError as failure:
            raise error(f"{path}: cannot read: {failure.strerror or failure}") from failure
        except ValueError as failure:
            raise error(f"{str(path)!r}: not a path: {failure}") from failure
        identity = (status.st_dev, status.st_ino)
        return cls(Path(path), identity, status.st_size, status.st_mtime_ns, error)

    def check(self) -> None:
        """Raise ``error`` if the file was written to, replaced or removed."""
        self._check(replaced=False)

    def check_written(self) -> None:
        """Raise ``error`` if the file was written to.

        A replaced file does no harm: a mapping keeps the old file.
        """
        self._check(replaced=True)

    def _check(self, *, replaced: bool) -> None:
        try:
            status = os.stat(self.path)
        except OSError as failure:
            if replaced:
                return
            raise self.error(
                f"{self.path}: changed since it was opened: {failure.strerror or failure}"
            ) from failure
        if (status.st_dev, status.st_ino) != self.identity:
            if replaced:
                return
            raise self.error(
                f"{self.path}: changed since it was opened: another file is in its place"
            )
        if (status.st_size, status.st_mtime_ns) != (self.size, self.time):
            raise self.error(
                f"{self.path}: changed since it was opened: expected {self.size} bytes and its old "
                f"time, got {status.st_size} bytes"
            )


def open_file(
    path: str | os.PathLike[str], error: type[ToynnError] = DataError, *, links: bool = True
) -> io.BufferedReader:
    """Open a regular file. Raises ``error`` for any other kind of file, without opening it.

    Opening a pipe or a device might block. Without ``links`` a symbolic link is an error, too. The
    caller must catch the OSError of reading.
    """
    try:
        _expect_regular(path, os.stat(path, follow_symlinks=links).st_mode, error)
        descriptor = platform.read_file(path, links=links)
        try:
            _expect_regular(path, os.fstat(descriptor).st_mode, error)  # replaced in between
        except BaseException:
            os.close(descriptor)
            raise
        return os.fdopen(descriptor, "rb")
    except OSError as failure:
        raise error(f"{path}: cannot read: {failure.strerror or failure}") from failure
    except ToynnError:
        raise
    except ValueError as failure:
        raise error(f"{str(path)!r}: not a path: {failure}") from failure


def read_bytes(
    path: str | os.PathLike[str], error: type[ToynnError] = DataError, *, links: bool = True
) -> bytes:
    """Return the contents of a regular file. Raises ``error`` as `open_file` does."""
    with open_file(path, error, links=links) as file, readable(path, error):
        return file.read()


def _expect_regular(path: object, mode: int, error: type[ToynnError]) -> None:
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
    if not stat.S_ISREG(mode):
        kind = _KINDS.get(stat.S_IFMT(mode), "of another kind")
        raise error(f"{path}: cannot read: expected a regular file; it is {kind}")
