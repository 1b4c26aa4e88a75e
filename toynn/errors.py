"""toynn's errors. Each message says what, where, expected, got, and what to do.

A message names an option by its flag: "--max-line". If Python's name differs or has a value, the
message has both: "overwrite=True|--overwrite", "base=|--model". The reader sees one of them: the
keyword (max_line=) in Python, the flag where ``flags_stay``, as on the command line.
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
    "RewardError",
    "ShapeError",
    "ToynnError",
    "flags_stay",
    "said",
]

#: Python's name of an option, and its flag.
BOTH = re.compile(r"([a-z_]+(?:=\w*)?)\|(--[a-z-]+)")
#: A flag outside of quotes, and its value, unless the next word continues the sentence.
FLAG = re.compile(
    r"""(?<![\w'"/-])(?:argument )?--([a-z][a-z0-9-]*)"""
    r"""(?:([ =])(?!(?:and|as|by|does|in|is|it|needs|or|of|says|to|tokens|with)[,;:.)]*(?:\s|$))"""
    r"""([^\s;:()]*(?:[^\s,;:().]|[.]{3}))([,;:.)]+(?=\s|$)|$)?|(:(?=\s)))?"""
)
#: A value that may be followed by a space: a number, or a placeholder in capitals.
PLAIN = re.compile(r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?|[A-Z]+")
LONGEST = 1000  # most characters of a message
_flags_stay = False


@contextmanager
def flags_stay() -> Iterator[None]:
    """Let errors keep their flags, for a command line."""
    global _flags_stay
    before, _flags_stay = _flags_stay, True
    try:
        yield
    finally:
        _flags_stay = before


def said(message: str) -> str:
    """Return a message with one name for each option: its flag if ``flags_stay``, else Python's.

    In Python "--holdout 0" is holdout=0, "--max-line" max_line=, and "--seq: it is" seq: it is. A
    word before a space may be half a path, or no value: "--adapter /my models" is adapter /my
    models. Text in backquotes is a shell command, and stays.
    """
    message = BOTH.sub(r"\2" if _flags_stay else r"\1", message)
    if _flags_stay:
        return message
    parts = message.split("`")
    parts[::2] = (FLAG.sub(_keyword, part) for part in parts[::2])
    return "`".join(parts)


def _keyword(match: re.Match[str]) -> str:
    name, between, value, end = match[1].replace("-", "_"), match[2], match[3] or "", match[4]
    if match[5]:
        return f"{name}:"
    cut = match.string[match.end() : match.end() + 1].strip()  # is not empty: the word continues
    if not value or (PLAIN.fullmatch(value) and not cut):
        return f"{name}={value}{end or ''}"
    return f"{name}{between}{value}" if end is None else f'{name}="{value}"{end}'


class ToynnError(Exception):
    """The base of all errors that toynn raises on purpose."""

    def __str__(self) -> str:
        """Return the message, with options as the reader types them."""
        message = super().__str__()
        if len(message) > LONGEST:  # it quotes a value of a file or a template
            message = f"{message[: LONGEST // 2]} ... {message[-LONGEST // 4 :]}"
        return said(message) if "--" in message else message


class ShapeError(ToynnError, ValueError):
    """An array or tensor has the wrong shape or dtype."""


class LifecycleError(ToynnError, RuntimeError):
    """A call came in the wrong order; the message names the missing call."""


class LabelError(ToynnError, ValueError):
    """A label or token id is out of range, or no row has loss; names the row and the value."""


class ConfigError(ToynnError, ValueError):
    """A configuration contradicts itself, or names something that does not exist."""


class DataError(ToynnError, ValueError):
    """A data file is missing, empty, too short or malformed; names the file and the line."""


class GGUFError(ToynnError, ValueError):
    """A GGUF file is malformed or cannot be read or written; names file, offset, expected, got."""


class AdapterError(ToynnError, ValueError):
    """An adapter does not fit its base model."""


class CheckpointError(ToynnError, RuntimeError):
    """A checkpoint cannot be written or resumed from."""


class NonFiniteError(ToynnError, ArithmeticError):
    """A gradient or logit is NaN or infinite; weights and moments are unchanged."""


class BackendUnavailable(ToynnError, RuntimeError):
    """The backend was not built, or this machine lacks it."""


class RankError(ToynnError, RuntimeError):
    """Another process of a distributed run failed, left, or made another call."""


class RewardError(ToynnError, RuntimeError):
    """A reward function raises, hangs, or returns anything but a number for each completion."""


class BackendError(ToynnError, RuntimeError):
    """The device failed in a step or in compiling; the message is its own."""
