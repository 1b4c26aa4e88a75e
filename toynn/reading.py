"""Opening what is to be read: files that end, and nothing that would wait or never stop."""

import errno
import os
import stat
from typing import BinaryIO

from toynn.errors import DataError, ToynnError

__all__ = ["open_file", "read_bytes"]

_KINDS = {
    stat.S_IFIFO: "a pipe; write what comes from it to a file first",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFSOCK: "a socket",
}


def open_file(path: str | os.PathLike[str], error: type[ToynnError] = DataError) -> BinaryIO:
    """Open a regular file. Raises ``error``: for others before they are opened, for that may wait.

    What comes of reading it is the caller's to catch: OSError.
    """
    try:
        _expect_regular(path, os.stat(path).st_mode, error)
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        file = os.fdopen(descriptor, "rb")
        try:
            _expect_regular(path, os.fstat(descriptor).st_mode, error)  # replaced in between
        except ToynnError:
            file.close()
            raise
    except OSError as failure:
        raise error(f"{path}: cannot read: {failure.strerror or failure}") from failure
    except ToynnError:
        raise
    except ValueError as failure:
        raise error(f"{str(path)!r}: not a path: {failure}") from failure
    return file


def read_bytes(path: str | os.PathLike[str], error: type[ToynnError] = DataError) -> bytes:
    """Return what is in a regular file. Raises ``error``."""
    with open_file(path, error) as file:
        try:
            return file.read()
        except OSError as failure:
            raise error(f"{path}: cannot read: {failure.strerror or failure}") from failure


def _expect_regular(path: object, mode: int, error: type[ToynnError]) -> None:
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
    if not stat.S_ISREG(mode):
        kind = _KINDS.get(stat.S_IFMT(mode), "of another kind")
        raise error(f"{path}: cannot read: expected a regular file; it is {kind}")
