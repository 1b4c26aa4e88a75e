"""The text of the shaders: one library for each op, compiled when a program first needs it."""

import re
from importlib.resources import files

from toynn.backends.metal import codebooks
from toynn.backends.metal.arguments import declaration, entries

_KERNELS = files(__package__) / "kernels"
_INCLUDE = re.compile(r'#include "(\w+)\.metal"')


def has(op: str) -> bool:
    """Whether there is a file of shaders for an op."""
    return (_KERNELS / f"{op}.metal").is_file()


def source(op: str, simdgroups: bool) -> str:
    """Return the source that the device compiles for an op: helpers, argument structs, its file.

    ``simdgroups`` says whether the device has simdgroup functions; it chooses the variants.
    """
    return "".join(
        (
            f"#define TOYNN_SIMDGROUPS {int(simdgroups)}\n",
            _file("common"),
            '#line 1 "arguments"\n',
            *(declaration(op, entry) for entry in entries(op)),
            _file(op),
        )
    )


def _file(name: str) -> str:
    """Return the text of a file, with the text of included files in place."""
    if name == "codebooks":
        return f'#line 1 "codebooks"\n{codebooks.text()}'
    lines = (_KERNELS / f"{name}.metal").read_text(encoding="utf-8").splitlines()
    for i, line in enumerate(lines):
        if included := _INCLUDE.fullmatch(line):
            lines[i] = f'{_file(included[1])}#line {i + 2} "{name}.metal"'
    return "\n".join([f'#line 1 "{name}.metal"', *lines, ""])
