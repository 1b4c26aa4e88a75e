"""Lines that are printed: facts, errors, warnings, with nothing that a terminal would obey."""

import textwrap
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

from toynn.printing import harmless, print_line

__all__ = ["fact", "harmless", "plain_warnings", "print_error", "print_line", "wrapped"]

WIDTH, LABEL = 80, 12  # characters of a line, and of them those before what is said


def fact(label: str, text: str) -> str:
    """Return what is said behind a label, in lines as ``wrapped`` makes them."""
    return wrapped(text, f"{label:{LABEL}}", " " * LABEL)


def wrapped(text: str, first: str = "", others: str = "") -> str:
    """Return a text in lines of at most 80 characters, which begin with others but for the first.

    A word that is longer, such as a path, is not cut.
    """
    return textwrap.fill(
        harmless(text, ""),
        WIDTH,
        initial_indent=first,
        subsequent_indent=others,
        break_long_words=False,
        break_on_hyphens=False,
    )


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
