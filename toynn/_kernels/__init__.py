"""The kernels, at the best ISA level that this CPU has.

Each op is one Cython file here, compiled once per level (setup.py) as
``toynn._kernels.<level>.<op>``. This module chooses a level, once, at import, and gives its modules
the plain names: ``toynn._kernels.rmsnorm`` is the rmsnorm of the chosen level. ``TOYNN_ISA=avx2``
forces a level.
"""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from pkgutil import iter_modules
from types import ModuleType

from toynn._kernels.cpu import has_openmp, supported_levels

__all__ = ["OPS", "built_levels", "has_openmp", "level", "load", "supported_levels"]

#: Turns of the idle loop in which an OpenMP thread waits for work before it sleeps, some ten
#: microseconds. The runtime's own default is thirty times that: a few per cent faster on an idle
#: machine, but several times slower on a busy one, where the waiting thread takes the CPU from the
#: working one.
SPIN = "10000"

#: Names of all ops: whatever was built, the same at every level.
OPS = tuple(
    sorted(module.name for module in iter_modules([str(Path(__file__).parent / "generic")]))
)


def built_levels() -> list[str]:
    """Names of the ISA levels in this build, worst first."""
    return [name for name in ("generic", "avx2", "avx512") if find_spec(f"{__name__}.{name}")]


def _choose() -> str:
    """Level to use: TOYNN_ISA if this CPU has it, else the best that is built and supported."""
    usable = [name for name in built_levels() if name in supported_levels()]
    forced = os.environ.get("TOYNN_ISA", "")
    if not forced:
        return usable[-1]
    if forced not in usable:
        why = "this CPU lacks it" if forced in built_levels() else "this build has no such level"
        raise ImportError(f"TOYNN_ISA={forced}: {why}; usable here: {', '.join(usable)}")
    return forced


def load(op: str, at: str) -> ModuleType:
    """Return the module of one op at one level, e.g. ``load("matmul", "avx2")``."""
    return import_module(f"{__name__}.{at}.{op}")


@contextmanager
def _short_spin() -> Iterator[None]:
    """Set the spin while the OpenMP runtime is loaded, unless the user has set how to wait."""
    if os.environ.keys() & {"GOMP_SPINCOUNT", "OMP_WAIT_POLICY"}:
        yield
        return
    os.environ["GOMP_SPINCOUNT"] = SPIN
    try:
        yield
    finally:
        del os.environ["GOMP_SPINCOUNT"]


level = _choose()
with _short_spin():
    for _op in OPS:
        globals()[_op] = sys.modules[f"{__name__}.{_op}"] = load(_op, level)
