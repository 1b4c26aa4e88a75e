"""Map files, and keep track of the files that are mapped now."""

import mmap
import stat
import weakref
from pathlib import Path

from toynn.errors import GGUFError
from toynn.system import platform
from toynn.system.reading import Unchanged


class Mapping(mmap.mmap):
    """A mapped file, with the state of the file when it was mapped."""

    watched: Unchanged


#: Not a WeakSet: a thread may iterate while another maps a file.
_mapped: set[weakref.ref[Mapping]] = set()


def map_file(path: Path) -> Mapping:
    """Map a file for reading. Raises GGUFError."""
    try:
        # Checked before opening: opening a pipe waits for its writer.
        if not stat.S_ISREG(path.stat().st_mode):
            raise GGUFError(f"{path}: not a GGUF file: not a regular file")
        with open(platform.read_file(path), "rb") as file:
            watched = Unchanged.of(path, GGUFError, file=file)
            if not watched.size:
                raise GGUFError(f"{path}: not a GGUF file (0 bytes)")
            mapping = Mapping(file.fileno(), 0, access=mmap.ACCESS_READ)
    except OSError as error:
        raise GGUFError(f"{path}: cannot read: {error.strerror or error}") from error
    except GGUFError:
        raise
    except ValueError as error:
        raise GGUFError(f"{str(path)!r}: not a path: {error}") from error
    mapping.watched = watched
    _mapped.add(weakref.ref(mapping, _mapped.discard))
    return mapping


def is_mapped(path: Path) -> bool:
    """Return whether path is, under any name, a file that this process has mapped."""
    try:
        status = path.stat()
    except OSError:
        return False
    identity = (status.st_dev, status.st_ino)
    mappings = [mapping for each in _mapped.copy() if (mapping := each()) is not None]
    return any(each.watched.identity == identity for each in mappings if not each.closed)
