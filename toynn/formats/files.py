"""Write files that are either complete or absent, whatever happens meanwhile.

Everything that toynn writes, except growing logs, goes through this module and `folders`. They
write a temporary file next to the target, wait for the disk, then rename it. `disk` has the calls.
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

#: A file's bytes, or its parts in order, so that weights need not be copied.
Content = bytes | Iterable[bytes | memoryview]
Parts = list[bytes | memoryview]
Writer = io.BufferedWriter

_AT_ONCE = 2**16  # bytes that are gathered for one write


def write_atomically(
    path: Path, content: Content, error: type[ToynnError] = CheckpointError
) -> None:
    """Replace a file's content; after a crash at any moment it has the old or the new content.

    A symbolic link stays, and its target is replaced. On failure the old file is unchanged, and
    ``error`` is raised with the bytes needed and free.
    """
    parts = parts_of(content)
    with replacing(path, f"{size_of(parts)} bytes", error) as file:
        file.writelines(parts)


@contextlib.contextmanager
def replacing(path: Path, what: str, error: type[ToynnError]) -> Iterator[Writer]:
    """Yield a file to write to; it replaces ``path`` when the block ends without an error.

    The mode of the old file is kept, and its owner where permitted. An OSError becomes an ``error``
    that names ``what``. If two blocks write one path, the last to end wins. Until then the file is
    at ``file.name``.
    """
    target = through_links(path, error)
    if (old := _status(target)) and not stat.S_ISREG(old.st_mode):
        raise error(f"{path}: cannot write: it is not a regular file")
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
    """Resolve symbolic links; return where `open` would write. The file need not exist.

    Renaming onto the path itself would replace the link and leave its target unchanged. Raises
    ``error`` for links in a circle.
    """
    try:
        target = Path(os.path.realpath(path))
    except ValueError as why:  # a NUL in the name
        raise error(f"{str(path)!r}: not a path: {why}") from None
    if target.is_symlink():
        raise error(f"{path}: cannot write: symbolic links that lead in a circle")
    return target


def _status(path: Path) -> os.stat_result | None:
    """Return a path's status, or None; one call, since another thread may replace the file."""
    try:
        return path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return None


def free_space(folder: Path) -> str:
    """Return the free bytes of a folder's disk as text, or why they are unknown."""
    try:
        return f"{shutil.disk_usage(folder).free} bytes free"
    except OSError as error:
        return f"folder: {error.strerror}"


def unwritable(
    path: Path, what: str, folder: Path, failure: OSError, error: type[ToynnError]
) -> ToynnError:
    """Return the error for a failed write: what, the free space of ``folder``, and why."""
    why = failure.strerror or failure
    return error(f"{path}: cannot write {what} ({free_space(folder)}): {why}")


def parts_of(content: Content) -> Parts:
    """Return a file's content as a list of parts."""
    return [content] if isinstance(content, bytes) else list(content)


def size_of(parts: Parts) -> int:
    """Return the number of bytes of a file in parts."""
    return sum(memoryview(part).nbytes for part in parts)


def open_new(path: Path, mode: int = 0o666) -> Writer:
    """Create a file; an existing one is an error."""
    return io.BufferedWriter(disk.Temporary(path, mode), _AT_ONCE)


def finish(file: Writer) -> None:
    """Wait until everything written is on the disk."""
    file.flush()
    disk.sync(file.fileno())


@contextlib.contextmanager
def temporary(target: Path) -> Iterator[Writer]:
    """Open a new file next to a target, with its mode; remove it unless it was renamed."""
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
            with contextlib.suppress(OSError):  # raised before; closing tries to write again
                file.close()
            with contextlib.suppress(OSError):
                path.unlink()
