"""Texts from models and files, made safe to print."""

import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from unicodedata import category

__all__ = ["harmless", "plain_warnings", "print_error", "print_line"]


#: What turns the order of characters on a line: a name with them reads as another.
TURNING = frozenset(map(chr, [*range(0x202A, 0x202F), *range(0x2066, 0x206A)]))


def harmless(text: str, kept: str = "\n\t") -> str:
    """Return a text without control characters but those kept: line breaks and tabs.

    Others become U+FFFD, and so do those that turn the order of what follows: no escape sequence
    reaches the terminal, and no name reads as another.
    """
    return "".join(
        "\N{REPLACEMENT CHARACTER}"
        if (category(c) == "Cc" and c not in kept) or c in TURNING
        else c
        for c in text
    )


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
