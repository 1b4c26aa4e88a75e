"""Standard input, output and error while a command runs; any of them may be closed or lost."""

import atexit
import contextlib
import functools
import io
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, TextIO

from toynn.errors import DataError
from toynn.system.printing import Lenient


class Unwritten(Exception):
    """Standard output cannot be written; ``code`` is the system's error number."""

    def __init__(self, error: OSError | ValueError) -> None:
        self.code = error.errno if isinstance(error, OSError) else None
        super().__init__((error.strerror if isinstance(error, OSError) else None) or str(error))


class Output(Lenient):
    """Standard output of a command.

    If ``matters`` is True, the output is what the command is for: a failed write raises Unwritten.
    If it is False, the command writes files, and goes on without its output.
    """

    matters = True

    def _lost(self, error: OSError | ValueError) -> None:
        if self.matters:
            raise Unwritten(error) from error


@contextmanager
def streams() -> Iterator[Output]:
    """Replace closed standard streams for a while; yield standard output.

    Text that cannot be written to standard error is dropped. All streams are restored at the end.
    """
    _open_descriptors()
    _drop_at_exit()
    before = sys.stdin, sys.stdout, sys.stderr
    if sys.stdin is None or sys.stdin.closed:
        sys.stdin = io.TextIOWrapper(io.BytesIO(), encoding="utf-8")
    output = Output(sys.stdout)
    error: Any = Lenient(sys.stderr)
    out: Any = output
    sys.stdout, sys.stderr = out, error
    try:
        yield output
    finally:
        sys.stdin, sys.stdout, sys.stderr = before
        _drop()


def input_bytes() -> bytes:
    """Return all of standard input. Raises DataError if it cannot be read."""
    try:
        binary = getattr(sys.stdin, "buffer", None)  # None for a StringIO
        return sys.stdin.read().encode() if binary is None else binary.read()
    except OSError as error:  # e.g. stdin is open for writing only, or its terminal has gone
        raise DataError(f"standard input: cannot read: {error.strerror or error}") from error


def _open_descriptors() -> None:
    """Open the null device for each closed stream, so that no other file gets its descriptor."""
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)


@functools.cache
def _drop_at_exit() -> None:
    """At exit, drop what Python itself prints last, such as a traceback."""
    atexit.register(_drop)


def _drop() -> None:
    """Drop text that cannot be written: with it, Python's flush at exit sets the exit code 120."""
    for stream in (sys.stdout, sys.stderr):
        if stream is not None and not _flushes(stream):
            with suppress(OSError, ValueError):
                nowhere = os.open(os.devnull, os.O_WRONLY)
                with contextlib.closing(open(nowhere, "wb", buffering=0)):
                    os.dup2(nowhere, stream.fileno())


def _flushes(stream: TextIO) -> bool:
    try:
        stream.flush()
    except (OSError, ValueError):  # its terminal has gone, its disk is full, or it is closed
        return False
    return True
