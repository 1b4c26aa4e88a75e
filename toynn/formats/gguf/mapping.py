"""Mapped files, and which files are mapped now."""

import mmap
import os
import stat
import weakref
from pathlib import Path

from toynn.errors import GGUFError

__all__ = ["Mapping", "check_unchanged", "is_mapped", "map_file"]


class Mapping(mmap.mmap):
    """A mapped file that knows which file it is."""

    identity: tuple[int, int]  # device and inode
    state: tuple[int, int]  # size and time of the last change


_mapped: "weakref.WeakSet[Mapping]" = weakref.WeakSet()


def map_file(path: Path) -> Mapping:
    """Map a file for reading. Raises GGUFError."""
    try:
        # Before it is opened: opening a pipe waits for its writer.
        if not stat.S_ISREG(path.stat().st_mode):
            raise GGUFError(f"{path}: not a GGUF file: not a regular file")
        with path.open("rb") as file:
            status = os.fstat(file.fileno())
            if not status.st_size:
                raise GGUFError(f"{path}: not a GGUF file (0 bytes)")
            mapping = Mapping(file.fileno(), 0, access=mmap.ACCESS_READ)
    except OSError as error:
        raise GGUFError(f"{path}: cannot read: {error.strerror or error}") from error
    except GGUFError:
        raise
    except ValueError as error:
        raise GGUFError(f"{str(path)!r}: not a path: {error}") from error
    mapping.identity = (status.st_dev, status.st_ino)
    mapping.state = (status.st_size, status.st_mtime_ns)
    _mapped.add(mapping)
    return mapping


def is_mapped(path: Path) -> bool:
    """Say whether path is, by whatever name, a file that is mapped here."""
    try:
        status = path.stat()
    except OSError:
        return False
    identity = (status.st_dev, status.st_ino)
    return any(mapping.identity == identity for mapping in _mapped if not mapping.closed)


def check_unchanged(path: Path, state: tuple[int, int]) -> None:
    """Raise GGUFError if the file of this name is no longer the one that was mapped."""
    try:
        status = path.stat()
    except OSError as error:
        raise GGUFError(f"{path}: changed since it was opened: {error.strerror}") from error
    if (status.st_size, status.st_mtime_ns) != state:
        raise GGUFError(
            f"{path}: changed since it was opened: expected {state[0]} bytes and its old time, got "
            f"{status.st_size} bytes"
        )
