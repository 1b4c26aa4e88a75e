"""Every kind of change to the disk is one function here; tests replace it with one that fails.

A temporary file belongs to one process. Its name cannot be guessed, and the process holds a lock on
it until the process ends. So the files of a killed process can be told from those in use.
"""

import contextlib
import io
import os
import re
import secrets
import shutil
import stat
from pathlib import Path
from typing import Any

from toynn.system import platform
from toynn.system.critical import uninterrupted

#: The functions here that change the disk, or wait for it.
CHANGES = ("create", "make_folder", "write", "sync", "sync_folder", "rename", "exchange")

#: Kinds of temporaries: a file that is being written, and an old file that was moved aside.
TEMPORARY, ASIDE = "tmp", "old"
_NAME = r"\..+\.toynn-{kind}-[0-9a-f]{{16}}"
#: Bytes of a file's name that its temporary's name keeps; a name may have 255.
_KEPT = 200


def create(path: Path, mode: int) -> int:
    """Return a descriptor of a new file. An existing file or link is an error."""
    return platform.new_file(path, mode)


def make_folder(path: Path) -> None:
    """Make a new folder."""
    os.mkdir(path)


def write(descriptor: int, data: Any) -> int:
    """Write some bytes; return how many of them."""
    return os.write(descriptor, data)


def sync(descriptor: int) -> None:
    """Wait until a file is on the disk."""
    os.fsync(descriptor)


def sync_folder(folder: Path) -> None:
    """Wait until the names in a folder are on the disk, where the file system supports it."""
    platform.sync_folder(folder)


def rename(source: Path, target: Path) -> None:
    """Rename a file or folder, replacing the target."""
    platform.replace(source, target)


def exchange(source: Path, target: Path) -> None:
    """Swap the names of two folders atomically. Raises OSError where the system cannot."""
    platform.exchange(source, target)


def temporary_name(target: Path, kind: str = TEMPORARY) -> Path:
    """Return an unguessable name in the target's folder."""
    stem = os.fsdecode(os.fsencode(target.name)[:_KEPT])
    return target.with_name(f".{stem}.toynn-{kind}-{secrets.token_hex(8)}")


class Temporary(io.FileIO):
    """A new file next to its target, which it may replace."""

    def __init__(self, path: Path, mode: int) -> None:
        super().__init__(os.fspath(path), "xb", opener=lambda *_: create(path, mode))
        self.path = path

    def write(self, data: Any) -> int:
        """Write some bytes; return how many of them."""
        return write(self.fileno(), data)


def hold(descriptor: int, path: Path) -> bool:
    """Lock a new file or folder until it is closed; return whether it still has its name.

    A `sweep` that comes between creation and lock takes the file for a stray and removes it. On a
    file system without locks, no sweep can lock either, so none removes anything.
    """
    try:
        platform.lock(descriptor)
    except BlockingIOError:
        return False
    except OSError:
        pass
    try:
        return platform.is_at(descriptor, path)
    except FileNotFoundError:
        return False


def sweep(folder: Path, kind: str = TEMPORARY) -> None:
    """Remove temporaries of this user in a folder whose processes have ended."""
    name = re.compile(_NAME.format(kind=kind))
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        strays = [entry.path for entry in entries if name.fullmatch(entry.name)]
        for path in strays:
            with contextlib.suppress(OSError):
                _remove_stray(Path(path))


@uninterrupted
def _remove_stray(path: Path) -> None:
    status = os.lstat(path)
    is_folder = stat.S_ISDIR(status.st_mode)
    if not platform.is_own(status) or not (is_folder or stat.S_ISREG(status.st_mode)):
        return
    descriptor = platform.open_folder(path) if is_folder else platform.read_file(path, links=False)
    try:
        platform.lock(descriptor)  # raises OSError if its process is alive
        if not platform.is_at(descriptor, path):
            return
        if is_folder:
            shutil.rmtree(path)
        else:
            path.unlink()
    finally:
        os.close(descriptor)
