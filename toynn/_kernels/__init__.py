"""The kernels, at the best ISA level that this CPU has.

Each op is one Cython file, here or in gemm/ (the product), attention/ or quants/ (quantized types),
compiled once per level (setup.py) as ``toynn._kernels.<level>.<op>``. This module chooses a level,
once, at import, and gives its modules the plain names: ``toynn._kernels.rmsnorm`` is the rmsnorm of
the chosen level. A level takes from the one below what it has no module of its own for.
``TOYNN_ISA=avx2`` forces a level. ``limits`` (what the CPU could do at best) and ``prepacked``
(prepacked weights) are compiled likewise, but are no ops.
"""

import errno
import os
import sys
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from pkgutil import iter_modules
from types import ModuleType
from typing import TYPE_CHECKING, Any

try:
    from toynn._kernels.cpu import amx_refusal, software_tiles, supported_levels
except ModuleNotFoundError as error:
    raise ImportError(
        f"toynn in {Path(__file__).parents[1]} has no compiled kernels: install it (pip install .) "
        "and start Python elsewhere, or build in place (`python setup.py build_ext --inplace`)"
    ) from error

from toynn._kernels.entry import MAX_THREADS, Entry

__all__ = [
    "MAX_THREADS",
    "OPS",
    "built_levels",
    "find",
    "level",
    "load",
    "software_tiles",
    "supported_levels",
    "unused_levels",
]

_built = {module.name for module in iter_modules([str(Path(__file__).parent / "generic")])}

#: Names of all ops: whatever was built, the same at every level.
OPS = tuple(sorted(_built - {"limits", "prepacked"}))


def built_levels() -> list[str]:
    """Names of the ISA levels in this build, worst first."""
    names = ("generic", "avx2", "avx512", "amx", "neon")
    return [name for name in names if find_spec(f"{__name__}.{name}")]


def _choose() -> str:
    """Level to use: TOYNN_ISA if this CPU has it, else the best that is built and supported."""
    usable = [name for name in built_levels() if name in supported_levels()]
    forced = os.environ.get("TOYNN_ISA", "").lower()
    if not forced:
        return [name for name in usable if not (name == "amx" and software_tiles())][-1]
    if forced not in usable:
        lacks = "CPU or its system" if forced in built_levels() else "build"
        raise ImportError(
            f"TOYNN_ISA={forced}: this {lacks} lacks it; usable here: {', '.join(usable)}"
        )
    return forced


def unused_levels() -> dict[str, str]:
    """Return why the levels of this build above the one in use are not used."""
    levels = built_levels()
    return {name: _why_not(name) for name in levels[levels.index(level) + 1 :]}


def _why_not(name: str) -> str:
    if name in supported_levels():
        if os.environ.get("TOYNN_ISA"):
            return f"TOYNN_ISA={os.environ['TOYNN_ISA']}"
        return "computed in software here: for tests, by TOYNN_ISA=amx"
    if name == "amx" and (code := amx_refusal()):
        why = f"{errno.errorcode.get(code, code)}, {os.strerror(code)}"
        return f"the CPU has it, and the system refuses room for its tiles ({why})"
    return "this CPU lacks it"


def load(op: str, at: str) -> ModuleType:
    """Return the module of one op at one level, e.g. ``load("matmul", "avx2")``."""
    levels = built_levels()
    below = levels[: levels.index(at) + 1]
    best = next(name for name in reversed(below) if find_spec(f"{__name__}.{name}.{op}"))
    module = import_module(f"{__name__}.{best}.{op}")
    entries = {name: entry for name, entry in vars(module).items() if isinstance(entry, Entry)}
    for name, entry in entries.items():
        entry.name = f"{op}.{name}"
    vars(module)["entries"] = entries
    return module


def find(kernel: str) -> Entry:
    """Return the entry of a name, "rmsnorm.forward". KeyError if there is none."""
    op, _, name = kernel.partition(".")
    entry: Entry = globals()[op].entries[name]
    return entry


if TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        """Return a kernel's module: of entries, whose signatures say how they are called."""


level = _choose()
for _op in _built:
    globals()[_op] = sys.modules[f"{__name__}.{_op}"] = load(_op, level)
