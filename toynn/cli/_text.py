"""Errors and warnings in one line each, without terminal control codes."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager

from toynn.system.printing import harmless, print_line

__all__ = ["plain_warnings", "print_error"]


def print_error(message: str) -> None:
    """Print what went wrong, in one line; names from hostile files can be in it."""
    print_line(f"toynn: error: {harmless(' '.join(message.splitlines()), '')}")


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
