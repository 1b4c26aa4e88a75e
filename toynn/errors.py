"""The kinds of error. Each message says what, where, expected, got, and what to do.

A message calls an option by its flag: "--max-line". Where Python's name is another one, or has a
value, both stand there: "overwrite=True|--overwrite", "base=|--model". Who reads it sees one of
them: the keyword, max_line=, in Python; the flag where ``flags_stay``, as on the command line.
"""

import re
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = [
    "AdapterError",
    "BackendError",
    "BackendUnavailable",
    "CheckpointError",
    "ConfigError",
    "DataError",
    "GGUFError",
    "LabelError",
    "LifecycleError",
    "NonFiniteError",
    "RankError",
    "ShapeError",
    "ToynnError",
    "flags_stay",
    "said",
]

#: Python's name of an option, and its flag.
BOTH = re.compile(r"([a-z_]+=\w*)\|(--[a-z-]+)")
#: A flag outside of quotes, and its value, unless the word behind it goes on with the sentence.
FLAG = re.compile(
    r"""(?<![\w'"/-])(?:argument )?--([a-z][a-z0-9-]*)"""
    r"""(?:([ =])(?!(?:and|as|by|does|in|is|it|needs|or|of|says|to|tokens|with)[,;:.)]*(?:\s|$))"""
    r"""([^\s;:()]*(?:[^\s,;:().]|[.]{3}))([,;:.)]+(?=\s|$)|$)?|(:(?=\s)))?"""
)
#: A value that is what it is with a space behind it, too: a number, or a word for any value.
PLAIN = re.compile(r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?|[A-Z]+")
_flags_stay = False


@contextmanager
def flags_stay() -> Iterator[None]:
    """Let errors keep their flags: who reads them types such."""
    global _flags_stay
    before, _flags_stay = _flags_stay, True
    try:
        yield
    finally:
        _flags_stay = before


def said(message: str) -> str:
    """Return a message with one name for each option: its flag where ``flags_stay``, else Python's.

    "--holdout 0" is holdout=0 there, "--max-line" max_line=, and "--seq: it is" seq: it is. A word
    with a space behind it may be half a path, or no value: "--adapter /my models" is adapter /my
    models. What stands in backquotes is typed in a shell, and stays.
    """
    message = BOTH.sub(r"\2" if _flags_stay else r"\1", message)
    if _flags_stay:
        return message
    parts = message.split("`")
    parts[::2] = (FLAG.sub(_keyword, part) for part in parts[::2])
    return "`".join(parts)


def _keyword(found: re.Match[str]) -> str:
    name, between, value, end = found[1].replace("-", "_"), found[2], found[3] or "", found[4]
    if found[5]:
        return f"{name}:"
    cut = found.string[found.end() : found.end() + 1].strip()  # the word goes on
    if not value or (PLAIN.fullmatch(value) and not cut):
        return f"{name}={value}{end or ''}"
    return f"{name}{between}{value}" if end is None else f'{name}="{value}"{end}'


class ToynnError(Exception):
    """Base of every error that toynn raises on purpose."""

    def __str__(self) -> str:
        """Return the message, in the words of who reads it."""
        message = super().__str__()
        return said(message) if "--" in message else message


class ShapeError(ToynnError, ValueError):
    """An array or tensor has the wrong shape or dtype."""


class LifecycleError(ToynnError, RuntimeError):
    """A call came in the wrong order; the message names the call that is missing."""


class LabelError(ToynnError, ValueError):
    """A label or token id is out of range, or no row counts; names the row and the value."""


class ConfigError(ToynnError, ValueError):
    """A configuration contradicts itself or asks for what does not exist."""


class DataError(ToynnError, ValueError):
    """A data file is missing, empty, too short or malformed; names the file and the line."""


class GGUFError(ToynnError, ValueError):
    """A GGUF file is malformed or cannot be read or written; names file, offset, expected, got."""


class AdapterError(ToynnError, ValueError):
    """An adapter does not fit its base model."""


class CheckpointError(ToynnError, RuntimeError):
    """A checkpoint cannot be written or resumed from."""


class NonFiniteError(ToynnError, ArithmeticError):
    """A gradient is NaN or infinite, and weights and moments were left as they were; or a logit."""


class BackendUnavailable(ToynnError, RuntimeError):
    """The backend was not built, or this machine lacks it."""


class RankError(ToynnError, RuntimeError):
    """Of the processes that train together another one failed, left, or does something else."""


class BackendError(ToynnError, RuntimeError):
    """The device failed: in the middle of a step, or in compiling; says so in its own words."""
