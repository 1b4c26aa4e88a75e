"""Files that are either complete or absent, whatever happens while they are written.

All that toynn leaves on a disk goes through here and `folders`, but for logs that grow: a temporary
beside the target, the disk waited for, then the name. `disk` has the calls.
"""

import contextlib
import io
import os
import shutil
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path

from toynn.errors import CheckpointError, ToynnError
from toynn.formats import disk
from toynn.system import platform
from toynn.system.critical import Section

__all__ = [
    "Content",
    "Parts",
    "Writer",
    "finish",
    "free_space",
    "open_new",
    "parts_of",
    "replacing",
    "size_of",
    "temporary",
    "through_links",
    "unwritable",
    "write_atomically",
]

#: A file's bytes, or parts of them in order, so that weights need not be copied.
Content = bytes | Iterable[bytes | memoryview]
Parts = list[bytes | memoryview]
Writer = io.BufferedWriter

_AT_ONCE = 2**16  # bytes that are gathered for one call


def write_atomically(
    path: Path, content: Content, error: type[ToynnError] = CheckpointError
) -> None:
    """Replace path by content: after a crash at any moment it holds the old or the new.

    A symbolic link stays, and what it leads to is replaced. Raises ``error``, with the bytes needed
    and free, and leaves the old file as it was.
    """
    parts = parts_of(content)
    with replacing(path, f"{size_of(parts)} bytes", error) as file:
        file.writelines(parts)


@contextlib.contextmanager
def replacing(path: Path, what: str, error: type[ToynnError]) -> Iterator[Writer]:
    """Give a file to write in; it takes the path's place when the block ends without an error.

    A replaced file's mode is kept, and its owner where that is allowed. ``what`` is named in the
    ``error`` that an OSError becomes. Of two that write one path, the last to end replaces the
    other's file. Until then the file is at ``file.name``.
    """
    target = through_links(path, error)
    if (old := _status(target)) and not stat.S_ISREG(old.st_mode):
        raise error(f"{path}: cannot write: it is a folder, or no regular file")
    try:
        disk.sweep(target.parent)
        with temporary(target) as file:
            yield file
            finish(file)
            disk.rename(Path(file.name), target)
        disk.sync_folder(target.parent)
    except OSError as failure:
        raise unwritable(path, what, target.parent, failure, error) from failure


def through_links(path: Path, error: type[ToynnError]) -> Path:
    """Return the file that a path leads to, which need not exist: where `open` would write.

    Replacing the path itself would put a file in the place of a link, and leave what others see
    behind it as it was. Raises ``error`` for links in a circle.
    """
    target = Path(os.path.realpath(path))
    if target.is_symlink():
        raise error(f"{path}: cannot write: symbolic links that lead in a circle")
    return target


def _status(path: Path) -> os.stat_result | None:
    """Return what a path is, or None: in one call, for another thread may replace it meanwhile."""
    try:
        return path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return None


def free_space(folder: Path) -> str:
    """Return the bytes that are free in a folder, or why that cannot be said."""
    try:
        return f"{shutil.disk_usage(folder).free} bytes free"
    except OSError as error:
        return f"folder: {error.strerror}"


def unwritable(
    path: Path, what: str, folder: Path, failure: OSError, error: type[ToynnError]
) -> ToynnError:
    """Return the error that says what could not be written, in which folder's room, and why."""
    why = failure.strerror or failure
    return error(f"{path}: cannot write {what} ({free_space(folder)}): {why}")


def parts_of(content: Content) -> Parts:
    """Return a file's bytes in parts."""
    return [content] if isinstance(content, bytes) else list(content)


def size_of(parts: Parts) -> int:
    """Return the bytes of a file in parts."""
    return sum(memoryview(part).nbytes for part in parts)


def open_new(path: Path, mode: int = 0o666) -> Writer:
    """Open a file that is not there yet."""
    return io.BufferedWriter(disk.Temporary(path, mode), _AT_ONCE)


def finish(file: Writer) -> None:
    """Wait until all that was written is on the disk."""
    file.flush()
    disk.sync(file.fileno())


@contextlib.contextmanager
def temporary(target: Path) -> Iterator[Writer]:
    """Open a new file beside a target, with its mode; it goes again if it keeps its name."""
    old = _status(target)
    while True:
        path = disk.temporary_name(target)
        file = open_new(path, stat.S_IMODE(old.st_mode) & 0o777 if old else 0o666)
        if disk.hold(file.fileno(), path):
            break
        file.close()
    try:
        if old:
            platform.give_owner(file.fileno(), old)
        yield file
    finally:
        with Section():
            with contextlib.suppress(OSError):  # which was raised before: closing writes again
                file.close()
            with contextlib.suppress(OSError):
                path.unlink()
