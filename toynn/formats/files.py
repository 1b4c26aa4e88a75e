"""Files that are either complete or absent, whatever happens while they are written."""

import contextlib
import os
import shutil
from pathlib import Path

from toynn.errors import CheckpointError, ToynnError

__all__ = ["free_space", "write_atomically"]


def write_atomically(path: Path, content: bytes, error: type[ToynnError] = CheckpointError) -> None:
    """Replace path by content: after a crash at any moment it holds the old or the new.

    Raises ``error``, with the bytes needed and free, and leaves the old file as it was.
    """
    temporary = path.with_name(f".{path.name}.tmp{os.getpid()}")
    try:
        with temporary.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except OSError as failure:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise error(
            f"{path}: cannot write {len(content)} bytes ({free_space(path.parent)}): "
            f"{failure.strerror or failure}"
        ) from failure


def free_space(folder: Path) -> str:
    """Return the bytes that are free in a folder, or why that cannot be said."""
    try:
        return f"{shutil.disk_usage(folder).free} bytes free"
    except OSError as error:
        return f"folder: {error.strerror}"
