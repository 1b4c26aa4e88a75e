"""Errors and warnings in one line each, without terminal control codes."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager

from toynn.system.printing import harmless, print_line


def print_error(message: str) -> None:
    """Print an error in one line; control characters, as in names from files, are removed."""
    print_line(f"toynn: error: {harmless(' '.join(message.splitlines()), '')}")


@contextmanager
def plain_warnings() -> Iterator[None]:
    """Print each warning in one line, like errors, without the line of code that raised it."""
    usual = warnings.formatwarning
    warnings.formatwarning = _one_line
    try:
        yield
    finally:
        warnings.formatwarning = usual


def _one_line(message: Warning | str, *_: object, **__: object) -> str:
    return f"toynn: warning: {harmless(' '.join(str(message).splitlines()), '')}\n"
