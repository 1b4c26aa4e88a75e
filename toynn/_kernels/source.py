"""The formula of an entry, and the lines that compute it, read from the kernel's own file.

Nothing is written twice: the docstring at the top of each .pyx file has the formulas.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from inspect import getsource, unwrap
from pathlib import Path
from textwrap import dedent
from typing import Any

from toynn._kernels import find

_NAME = re.compile(r"^(?:cdef|cpdef|def|ctypedef)\b[^(=]*?(\w+)\s*\(|^(\w+) = ")
_FORMULA = re.compile(r"(?:    |\w+:\s).*=")  # prose starts at the margin
_WORD = re.compile(r"[A-Za-z_]\w*")


@dataclass(frozen=True)
class Source:
    """The file of an entry. Lines are numbered from 0."""

    path: str  # relative to the folder that holds toynn
    text: str
    formula: tuple[int, ...]  # lines of the docstring that say what the entry computes
    formulas: tuple[int, ...]  # all formulas of the file: those lines and what they are made of
    code: tuple[int, ...]  # lines of the entry and of the functions of this file that it calls
    about: int  # number of lines of the docstring, with which the file begins


@cache
def source_of(kernel: str) -> Source:
    """Return the source of an entry ("rmsnorm.forward"). Raises KeyError if there is no entry."""
    signature = find(kernel).signature
    op, _, entry = kernel.partition(".")
    folder = Path(__file__).parent
    path = next(folder.rglob(f"{op}.pyx"))
    text = path.read_text(encoding="utf-8")
    lines = text.splitlines()
    about = next(k for k, line in enumerate(lines) if k and line.rstrip().endswith('"""')) + 1
    written = [*signature.outputs, *signature.saved]
    formula = _formula(lines[:about], entry, written)
    all_formulas = tuple(k for k, line in enumerate(lines[:about]) if _FORMULA.match(line))
    whole = tuple(range(all_formulas[0], all_formulas[-1] + 1)) if all_formulas else ()
    called = [entry, f"_{entry}", f"_{entry}_scratch"]  # by the loops of loops.py
    called += [f"{entry}_{what}" for c in signature.cuts for what in (c.what, c.what.rstrip("s"))]
    code = tuple(sorted(_code(lines, about, called)))
    within = path.relative_to(folder.parents[1]).as_posix()
    return Source(within, text, formula, whole, code, about)


def function_source(kernel: str, function: Callable[..., Any]) -> Source:
    """Return the source of a function of Python, or a line that says that there is none."""
    try:
        text = dedent(getsource(unwrap(function)))
    except (OSError, TypeError):  # of a prompt, or of a compiled module
        text = f"# {kernel}: no file has its source"
    return Source(kernel, text, (), (), tuple(range(text.count("\n") + 1)), 0)


def _formula(about: list[str], entry: str, written: list[str]) -> tuple[int, ...]:
    """Return the lines of the formula that begins with the entry's name.

    If there is none: the formulas of what the entry writes; if there are none either, all formulas.
    """
    blocks = [k for k, line in enumerate(about) if re.match(rf"\s+{entry}\s\s", line)]
    if blocks:
        start = blocks[0]
        indent = _indent(about[start])
        end = start + 1
        while end < len(about) and _indent(about[end]) > indent:
            end += 1
        return tuple(range(start, end))
    names = "|".join(re.escape(name) for name in written)
    equation = re.compile(rf"[\s;:](?:{names})(?:\[[^\]]*\])?\s*=(?!=)")
    variant = re.compile(r"\s+with [\w ]+:")  # "with sinks: ...": not what always runs
    formulas = [k for k, line in enumerate(about) if _FORMULA.match(line)]
    formulas = [k for k in formulas if not variant.match(about[k])]
    return tuple(k for k in formulas if equation.search(about[k])) or tuple(formulas)


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip()) if line.strip() else -1


def _code(lines: list[str], about: int, wanted: list[str]) -> set[int]:
    """Return the lines of these definitions, and of all definitions that they use in turn.

    A definition goes from its first line to the next line that starts at the margin.
    """
    starts = [k for k in range(about, len(lines)) if lines[k] and lines[k][0] not in " \t)]}#"]
    blocks: dict[str, set[int]] = {}
    for start, end in zip(starts, [*starts[1:], len(lines)], strict=True):
        named = _NAME.match(lines[start])
        if named:
            while not lines[end - 1].strip() or lines[end - 1].startswith("#"):
                end -= 1
            blocks.setdefault(named[1] or named[2], set()).update(range(start, end))
    code = set[int]()
    while wanted:
        block = blocks.pop(wanted.pop(), set())
        code |= block
        wanted += {word for k in block for word in _WORD.findall(lines[k])} & blocks.keys()
    return code
