"""Files that are either complete or absent, whatever happens while they are written."""

import contextlib
import os
import shutil
from collections.abc import Mapping
from pathlib import Path

from toynn.errors import CheckpointError, ToynnError

__all__ = ["free_space", "through_links", "write_atomically", "write_together"]


def write_atomically(path: Path, content: bytes, error: type[ToynnError] = CheckpointError) -> None:
    """Replace path by content: after a crash at any moment it holds the old or the new.

    A symbolic link stays, and what it leads to is replaced. Raises ``error``, with the bytes needed
    and free, and leaves the old file as it was.
    """
    write_together({path: content}, error)


def write_together(contents: Mapping[Path, bytes], error: type[ToynnError]) -> None:
    """Replace files that belong together: at no time is a new one beside an old one.

    All are on the disk before the first takes its name: where there is no room, as for
    write_atomically, what was there stays. A crash behind that leaves the first of them at most.
    """
    targets = {path: through_links(path, error) for path in contents}
    temporaries = {t: t.with_name(f".{t.name}.tmp{os.getpid()}") for t in targets.values()}
    try:
        for path, content in contents.items():
            with temporaries[targets[path]].open("wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
        for path in list(contents)[1:]:
            targets[path].unlink(missing_ok=True)
        for path in contents:
            os.replace(temporaries[targets[path]], targets[path])
    except OSError as failure:
        raise error(
            f"{path}: cannot write {len(contents[path])} bytes "
            f"({free_space(targets[path].parent)}): {failure.strerror or failure}"
        ) from failure
    finally:
        for temporary in temporaries.values():
            with contextlib.suppress(OSError):
                temporary.unlink()


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
