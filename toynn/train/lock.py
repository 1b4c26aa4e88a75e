"""A lock that lets one run use a folder; it ends with its process, however that ends."""

import contextlib
import os
from pathlib import Path

from toynn.errors import CheckpointError
from toynn.system import platform

NAME = ".lock"


class Lock:
    """A lock that is held until ``release``."""

    def __init__(self, folder: Path) -> None:
        """Take the lock of a folder. Raises CheckpointError if a living process has it."""
        self._path = folder / NAME
        try:
            self._descriptor = self._take()
        except BlockingIOError:
            owner = self._path.read_text("ascii", "replace").strip() or "unknown"
            raise CheckpointError(
                f"{folder}: another run is writing there (process {owner}): wait for it, or stop it"
            ) from None
        except OSError as error:
            raise CheckpointError(f"{folder}: cannot lock: {error.strerror or error}") from error

    def _take(self) -> int:
        while True:
            descriptor = platform.open_lock(self._path)
            try:
                platform.lock(descriptor)
                # Another run may have ended, and removed its lock, since this file was opened.
                with contextlib.suppress(FileNotFoundError):
                    if os.path.samestat(os.fstat(descriptor), os.stat(self._path)):
                        os.ftruncate(descriptor, 0)
                        os.write(descriptor, f"{os.getpid()}\n".encode())
                        return descriptor
            except BaseException:
                os.close(descriptor)
                raise
            os.close(descriptor)

    def release(self) -> None:
        """Release the lock."""
        with contextlib.suppress(OSError):
            self._path.unlink()
        os.close(self._descriptor)
