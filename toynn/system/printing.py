"""Print text safely: no control characters, short times and sizes, streams that may be lost."""

import contextlib
import io
import os
import sys
import textwrap
from collections.abc import Iterator, Mapping
from typing import Any, TextIO
from unicodedata import category

WIDTH, LABEL = 80, 12  # characters of a line, and of the label at its start

#: Characters that change the direction of text. With them, a name can look like another name.
TURNING = frozenset(map(chr, [*range(0x202A, 0x202F), *range(0x2066, 0x206A)]))


def strings_in(value: Any) -> Iterator[str]:
    """Yield all strings in a value made of lists and dictionaries."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping | list | tuple):
        for part in value.values() if isinstance(value, Mapping) else value:
            yield from strings_in(part)


def harmless(text: str, kept: str = "\n\t") -> str:
    """Return a text without control characters, except those in ``kept``.

    Control characters, and those that change the direction of text, become U+FFFD. So no escape
    sequence reaches the terminal, and no name can pose as another.
    """
    return "".join(
        "\N{REPLACEMENT CHARACTER}"
        if (category(c) == "Cc" and c not in kept) or c in TURNING
        else c
        for c in text
    )


def counted(number: int, noun: str) -> str:
    """Return a number with its noun: 1 row, 1,000 rows."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def duration(seconds: float) -> str:
    """Return seconds as minutes:seconds, or hours:minutes:seconds."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def size(nbytes: float) -> str:
    """Return a size with its unit."""
    for unit, one in (("GB", 10**9), ("MB", 10**6)):
        if nbytes >= one:
            return f"{nbytes / one:.1f} {unit}"
    return f"{nbytes / 1000:.1f} kB"


def columns(stream: Any) -> int:
    """Return the width of a stream's terminal; 0 if it is not a terminal, or unknown."""
    try:
        return os.get_terminal_size(stream.fileno()).columns if stream.isatty() else 0
    except (OSError, ValueError):  # e.g. the stream was closed
        return 0


class _Nowhere(io.TextIOBase):
    """A stream for a process that was started without one."""

    def write(self, text: str) -> int:
        return len(text)


class Lenient:
    """A text stream that drops text it cannot write, so that a run continues.

    At any time the terminal may hang up, the reader may exit, the disk may fill up, or the stream
    may be closed. ``stream`` is None if the process was started without one.
    """

    def __init__(self, stream: TextIO | None) -> None:
        self._stream: Any = _Nowhere() if stream is None else stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        """Write or drop a text; return its length. Unencodable characters become escapes."""
        with self._forgiving():
            try:
                self._stream.write(text)
            except UnicodeEncodeError as error:  # e.g. a file on Windows, in cp1252
                encoding = getattr(self._stream, "encoding", None) or error.encoding  # or "charmap"
                self._stream.write(text.encode(encoding, "backslashreplace").decode(encoding))
        return len(text)

    def flush(self) -> None:
        """Flush the buffer, or drop it."""
        with self._forgiving():
            self._stream.flush()

    def isatty(self) -> bool:
        """Return whether the stream is a terminal that still exists."""
        try:
            return bool(self._stream.isatty())
        except (OSError, ValueError):
            return False

    @contextlib.contextmanager
    def _forgiving(self) -> Iterator[None]:
        try:
            yield
        except UnicodeError:
            raise
        except (OSError, ValueError) as error:  # a closed file is a ValueError
            self._lost(error)

    def _lost(self, error: OSError | ValueError) -> None:
        """Note that text was dropped."""


@contextlib.contextmanager
def lenient() -> Iterator[None]:
    """Ignore prints that cannot be written, inside this context."""
    out: Any = Lenient(sys.stdout)
    error: Any = Lenient(sys.stderr)
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(error):
        yield


def fact(label: str, text: str) -> str:
    """Return a text after its label, in lines of at most 80 characters."""
    return wrapped(text, f"{label:{LABEL}}", " " * LABEL)


def wrapped(text: str, first: str = "", others: str = "") -> str:
    """Wrap a text to 80 characters. The first line begins with ``first``, others with ``others``.

    A word longer than a line, such as a path, is not cut.
    """
    return textwrap.fill(
        harmless(text, ""),
        WIDTH,
        initial_indent=first,
        subsequent_indent=others,
        break_long_words=False,
        break_on_hyphens=False,
    )


def print_line(line: str) -> None:
    """Print a line on stderr; drop it if it cannot be written."""
    print(line, file=Lenient(sys.stderr), flush=True)


def print_fact(label: str, text: str) -> None:
    """Print a text after its label on stderr, as ``print_line`` does."""
    print_line(fact(label, text))
