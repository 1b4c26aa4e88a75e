"""Write folders, and files that belong together: all are replaced, or none."""

import contextlib
import errno
import os
import shutil
import stat
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path

from toynn.errors import ToynnError
from toynn.formats import disk
from toynn.formats.files import (
    Content,
    Parts,
    finish,
    open_new,
    parts_of,
    size_of,
    temporary,
    through_links,
    unwritable,
)
from toynn.system import platform
from toynn.system.critical import Section, uninterrupted

#: Bytes; a shorter file is first compared with the new content.
_SHORT = 2**20
_in_place = threading.Lock()  # else two threads would mix their files


def _renew_lock() -> None:
    global _in_place
    _in_place = threading.Lock()


platform.in_child(_renew_lock)


class NewFolder:
    """A folder under a temporary name, to be filled."""

    def __init__(self, path: Path, target: Path, error: type[ToynnError]) -> None:
        self.path = path
        self._target, self._error = target, error

    def write(self, name: str, content: Content) -> None:
        """Write a file and wait for the disk. Raises the ``error`` of `new_folder`."""
        parts = parts_of(content)
        try:
            (self.path / name).parent.mkdir(exist_ok=True)
            with open_new(self.path / name) as file:
                file.writelines(parts)
                finish(file)
        except OSError as failure:
            what, path = f"{size_of(parts)} bytes", self._target / name
            raise unwritable(path, what, self.path, failure, self._error) from failure


@contextlib.contextmanager
def new_folder(
    path: Path, error: type[ToynnError], *, replace: bool = False
) -> Iterator[NewFolder]:
    """Yield a folder to fill; it is renamed to ``path`` when the block ends without an error.

    If ``path`` exists by then, ``error`` is raised, unless it is an empty folder, or a folder and
    ``replace`` is True. Then the old and the new folder swap names, in one call where the system
    can. Elsewhere two calls are needed; if the second fails, the first is undone.
    """
    target = through_links(path, error)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        disk.sweep(target.parent)
        with temporary_folder(target) as filled:
            yield NewFolder(filled, path, error)
            disk.sync_folder(filled)
            try:
                disk.rename(filled, target)
            except OSError as failure:
                if not replace or failure.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                    raise
                os.chmod(filled, stat.S_IMODE(target.stat().st_mode))
                _change_places(filled, target)
        disk.sync_folder(target.parent)
    except OSError as failure:
        raise unwritable(path, "the folder", target.parent, failure, error) from failure


def write_together(folder: Path, contents: Mapping[str, Content], error: type[ToynnError]) -> None:
    """Write files that belong together into a folder, which may exist and have other files.

    On failure ``error`` is raised and the old files are unchanged. A folder without other files is
    replaced as a whole if possible. Otherwise the changed files are replaced one by one. A reader
    at that moment, or after a kill, finds the last of them missing; it never finds a mix of old and
    new files.
    """
    folder_at = through_links(folder, error)
    if os.path.lexists(folder_at) and not folder_at.is_dir():
        raise error(f"{folder}: cannot make the folder: {os.strerror(errno.EEXIST)}")
    plain = {name: parts_of(content) for name, content in contents.items()}
    if not os.path.lexists(folder_at) or _can_be_replaced(folder_at, plain):
        with new_folder(folder, error, replace=True) as new:
            for name, parts in plain.items():
                new.write(name, parts)
        return
    name = ""
    try:
        disk.sweep(folder_at)
        with contextlib.ExitStack() as stack, _in_place:
            sources = {}
            for name, parts in plain.items():
                target = through_links(folder / name, error)
                if not _holds(target, parts):
                    file = stack.enter_context(temporary(target))
                    file.writelines(parts)
                    finish(file)
                    sources[target] = Path(file.name)
            _rename_all(sources)
        disk.sync_folder(folder_at)
        disk.sweep(folder_at, disk.ASIDE)  # left by a process that was killed while renaming
    except OSError as failure:
        what = f"{size_of(plain[name])} bytes"
        raise unwritable(folder / name, what, folder_at, failure, error) from failure


@contextlib.contextmanager
def temporary_folder(target: Path) -> Iterator[Path]:
    """Make a new folder next to a target; remove whatever has its name at the end.

    After a kill, the next write to that place removes it: see `disk.sweep`.
    """
    while True:
        path = disk.temporary_name(target)
        disk.make_folder(path)
        try:
            descriptor = platform.open_folder(path)
        except FileNotFoundError:  # swept before it could be locked
            continue
        if disk.hold(descriptor, path):
            break
        os.close(descriptor)
    try:
        yield path
    finally:
        with Section():  # interrupted, rmtree may close a descriptor twice
            shutil.rmtree(path, ignore_errors=True)
            os.close(descriptor)


def _can_be_replaced(folder: Path, contents: Mapping[str, object]) -> bool:
    """Return whether a folder has only files of these names, and may be replaced itself."""
    if not folder.is_dir() or folder.samefile(os.curdir) or os.path.ismount(folder):
        return False
    if not os.access(folder.parent, os.W_OK | os.X_OK):
        return False
    with os.scandir(folder) as entries:
        return all(e.name in contents and e.is_file(follow_symlinks=False) for e in entries)


def _change_places(filled: Path, target: Path) -> None:
    """Swap a new folder with an old one, which then has the temporary name."""
    try:
        disk.exchange(filled, target)
    except OSError:  # an older system, or a file system that cannot
        _rename_all({target: filled}, set_aside=True)


def _holds(target: Path, parts: Parts) -> bool:
    """Return whether a short file has this content already."""
    short = size_of(parts) < _SHORT and target.is_file()
    return short and target.read_bytes() == b"".join(parts)


@uninterrupted
def _rename_all(sources: dict[Path, Path], *, set_aside: bool = False) -> None:
    """Rename all files; on failure restore all old ones and raise OSError."""
    if len(sources) == 1 and not set_aside:
        for target, source in sources.items():
            disk.rename(source, target)
        return
    asides: dict[Path, Path] = {}
    placed = []
    try:
        for target in reversed(sources):
            if os.path.lexists(target):
                asides[target] = disk.temporary_name(target, disk.ASIDE)
                disk.rename(target, asides[target])
        for target, source in sources.items():
            disk.rename(source, target)
            placed.append(target)
    except BaseException:
        for target in placed:
            if target not in asides:
                _remove(target)
        for target, aside in asides.items():
            if os.path.lexists(aside):
                platform.replace(aside, target)  # new files are open: Windows keeps their names
        raise
    for aside in asides.values():
        _remove(aside)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)
