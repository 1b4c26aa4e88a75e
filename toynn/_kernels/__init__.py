"""The kernels, at the best ISA level that this CPU has.

Each op is one Cython file:

    activations/    silu, gelu, swiglu, ..: functions of one element, or of a few
    elements/       arithmetic, roundings, dropout
    norms/          softmax, RMSNorm, LayerNorm, ..: each row is divided by a sum over it
    rows/           rows are gathered, sent to experts, joined; axes are summed, swapped
    attention/      attention, and what prepares its queries and keys
    recurrent/      state spaces, the delta rule, short convolutions
    gemm/           products of matrices
    quants/         quantized types
    losses/         cross-entropy, preferences
    weights/        AdamW, the norm of gradients, initial values
    base/           what all of them stand on, and no op

setup.py compiles an op once per level, as ``toynn._kernels.<level>.<op>``, whatever its folder.
This module chooses a level once, at import, and gives its modules plain names:
``toynn._kernels.rmsnorm`` is the rmsnorm of the chosen level. A level without a module for an op
uses that of the next lower level that has one. ``TOYNN_ISA=avx2`` forces a level. ``limits`` (peak
rates of the CPU) and ``prepacked`` (prepacked weights) are compiled per level too, but are not ops.
"""

import errno
import os
import sys
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules
from types import ModuleType
from typing import TYPE_CHECKING, Any

try:
    from toynn._kernels.base.cpu import amx_refusal, runs_wheels, software_tiles, supported_levels
except ModuleNotFoundError as error:
    raise ImportError(
        f"toynn in {Path(__file__).parents[1]} has no compiled kernels: install it (pip install .) "
        "and start Python elsewhere, or build in place (`python setup.py build_ext --inplace`)"
    ) from error


def _expect_numpy() -> None:
    """Raise ImportError if NumPy needs a newer CPU; where it does, its import may end a process."""
    if runs_wheels() or "numpy" in sys.modules:
        return
    import subprocess

    words = [sys.executable, "-P", "-c", "import numpy"]
    if subprocess.run(words, capture_output=True).returncode:
        raise ImportError(
            "NumPy cannot be imported on this CPU: since 2.4 its wheels need x86-64-v2 (SSE4.2, "
            "POPCNT; CPUs since about 2009); install an older one: pip install 'numpy<2.4'"
        )


_expect_numpy()

from toynn._kernels.base.entry import MAX_THREADS, Entry  # noqa: E402  # imports NumPy

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

#: The modules of each ISA level, lowest first. A folder that another build left may have none.
_modules = {
    level: {module.name for module in iter_modules([str(Path(__file__).parent / level)])}
    for level in ("generic", "avx2", "avx512", "amx", "neon")
}

#: Names of all ops in this build, the same at every level.
OPS = tuple(sorted(_modules["generic"] - {"limits", "prepacked"}))


def built_levels() -> list[str]:
    """Return the names of the ISA levels in this build, lowest first."""
    return [name for name, modules in _modules.items() if modules]


def _choose() -> str:
    """Return the level to use: TOYNN_ISA if usable, else the best built and supported one."""
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
    """Return, for each level of this build above the one in use, why it is not used."""
    levels = built_levels()
    return {name: _why_not(name) for name in levels[levels.index(level) + 1 :]}


def _why_not(name: str) -> str:
    if name in supported_levels():
        if os.environ.get("TOYNN_ISA"):
            return f"TOYNN_ISA={os.environ['TOYNN_ISA']}"
        return "computed in software here, for tests; TOYNN_ISA=amx chooses it"
    if name == "amx" and (code := amx_refusal()):
        why = f"{errno.errorcode.get(code, code)}, {os.strerror(code)}"
        return f"the CPU has it, but the system refuses memory for its tiles ({why})"
    return "this CPU lacks it"


def load(op: str, at: str) -> ModuleType:
    """Return the module of one op at one level, e.g. ``load("matmul", "avx2")``."""
    levels = built_levels()
    below = levels[: levels.index(at) + 1]
    best = next(name for name in reversed(below) if op in _modules[name])
    module = import_module(f"{__name__}.{best}.{op}")
    entries = {name: entry for name, entry in vars(module).items() if isinstance(entry, Entry)}
    for name, entry in entries.items():
        entry.name = f"{op}.{name}"
    vars(module)["entries"] = entries
    return module


def find(kernel: str) -> Entry:
    """Return the entry with a name such as "rmsnorm.forward". Raises KeyError if there is none."""
    op, _, name = kernel.partition(".")
    entry: Entry = globals()[op].entries[name]
    return entry


if TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        """Return a kernel's module. It holds entries, whose signatures say how to call them."""


for _name in ("cpu", "entry", "invoke", "pool", "signature"):  # where they were before base/
    globals()[_name] = sys.modules[f"{__name__}.{_name}"] = sys.modules[f"{__name__}.base.{_name}"]

level = _choose()
for _op in _modules["generic"]:
    globals()[_op] = sys.modules[f"{__name__}.{_op}"] = load(_op, level)
