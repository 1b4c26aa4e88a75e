"""Lines on stderr: errors and warnings, with nothing in them that a terminal would obey."""

import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from toynn.printing import harmless

__all__ = ["harmless", "plain_warnings", "print_error", "print_line"]


def print_error(message: str) -> None:
    """Print what went wrong, in one line; names from hostile files can be in it."""
    print_line(f"toynn: error: {harmless(' '.join(message.splitlines()), '')}")


def print_line(line: str) -> None:
    """Print a line on stderr, if there is somebody to read it."""
    with suppress(OSError, ValueError):
        if sys.stderr is not None:
            print(line, file=sys.stderr, flush=True)


@contextmanager
def plain_warnings() -> Iterator[None]:
    """Let warnings be one line each, as errors are, without the line of code that gave them."""
    usual = warnings.formatwarning
    warnings.formatwarning = _one_line
    try:
        yield
    finally:
        warnings.formatwarning = usual


def _one_line(message: Warning | str, *_: object, **__: object) -> str:
    return f"toynn: warning: {harmless(' '.join(str(message).splitlines()), '')}\n"
