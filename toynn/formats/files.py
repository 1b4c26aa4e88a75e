"""Files that are either complete or absent, whatever happens while they are written."""

import contextlib
import os
import shutil
from pathlib import Path

from toynn.errors import CheckpointError, ToynnError

__all__ = ["free_space", "through_links", "write_atomically"]


def write_atomically(path: Path, content: bytes, error: type[ToynnError] = CheckpointError) -> None:
    """Replace path by content: after a crash at any moment it holds the old or the new.

    A symbolic link stays, and what it leads to is replaced. Raises ``error``, with the bytes needed
    and free, and leaves the old file as it was.
    """
    target = through_links(path, error)
    temporary = target.with_name(f".{target.name}.tmp{os.getpid()}")
    try:
        with temporary.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, target)
    except OSError as failure:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise error(
            f"{path}: cannot write {len(content)} bytes ({free_space(target.parent)}): "
            f"{failure.strerror or failure}"
        ) from failure


def through_links(path: Path, error: type[ToynnError]) -> Path:
    """Return the file that a path leads to, which need not exist: where `open` would write.

    Replacing the path itself would put a file in the place of a link, and leave what others see
    behind it as it was. Raises ``error`` for links in a circle.
    """
    target = Path(os.path.realpath(path))
    if target.is_symlink():
        raise error(f"{path}: cannot write: symbolic links that lead in a circle")
    return target


def free_space(folder: Path) -> str:
    """Return the bytes that are free in a folder, or why that cannot be said."""
    try:
        return f"{shutil.disk_usage(folder).free} bytes free"
    except OSError as error:
        return f"folder: {error.strerror}"
