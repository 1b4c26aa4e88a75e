"""Compile a learner's C or Cython, and load its functions.

Cython's functions are `cdef public`, so they can be called as plain C functions.
"""

import ctypes
import os
import platform
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from toynn_puzzles.answer import Wrong

FLAGS = ["-O3", "-fno-math-errno", "-ffp-contract=fast", "-shared", "-fPIC"]
X86 = ["-march=native", "-mprefer-vector-width=512"]
#: A function of a program, and its arguments: pointers and sizes.
C_FUNCTION = re.compile(r"^(?:cdef public )?(?:void|float) (\w+)\(([^)]*)\)", re.MULTILINE)
SECONDS = 600  # time for a compiler, also on a busy machine


def load(language: str, path: Path, text: str) -> dict[str, Callable[..., Any]]:
    """Return the functions of a program by name; each takes arrays and numbers. Raises Wrong."""
    compiler = shlex.split(os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc")
    if not shutil.which(compiler[0]):
        raise Wrong(f"this puzzle needs a C compiler: {compiler[0]} is not found. Install gcc.")
    with tempfile.TemporaryDirectory() as folder:
        source, library = Path(folder, f"answer.{language}"), Path(folder, "answer.so")
        source.write_text(text, encoding="utf-8")
        include: list[str] = []
        if language == "pyx":
            if find_spec("Cython") is None:
                raise Wrong("this puzzle needs Cython: pip install cython")
            command = [sys.executable, "-m", "cython", "-3", "-X", "cdivision=True", str(source)]
            _run(command, source, path)
            source = source.with_suffix(".c")
            include = [f"-I{sysconfig.get_path('include')}"]
        flags = FLAGS + (X86 if platform.machine() in ("x86_64", "AMD64") else [])
        if sys.platform == "darwin":  # Python's functions are resolved when the library is loaded
            flags += ["-undefined", "dynamic_lookup"]
        _run([*compiler, *flags, *include, str(source), "-o", str(library), "-lm"], source, path)
        functions = ctypes.CDLL(str(library))
    return {each[1]: _function(functions, each) for each in C_FUNCTION.finditer(text)}


def _run(command: list[str], source: Path, path: Path) -> None:
    """Run a compiler. Raises Wrong with its first error in the learner's file."""
    done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False)
    if done.returncode:
        said = (done.stderr or done.stdout).replace(str(source), path.name)
        lines = [line for line in said.splitlines() if line.strip()]
        first = next((i for i, line in enumerate(lines) if "error" in line.lower()), 0)
        raise Wrong("it does not compile:\n" + "\n".join(lines[first : first + 12]))


def _function(library: ctypes.CDLL, declaration: re.Match[str]) -> Callable[..., Any]:
    """Return a function by its declaration; it takes arrays for pointers."""
    function, declared = library[declaration[1]], declaration[2].split(",")
    function.argtypes = [ctypes.c_void_p if "*" in one else ctypes.c_ssize_t for one in declared]
    function.restype = (
        ctypes.c_float if " float " in f" {declaration[0]}".partition(declaration[1])[0] else None
    )

    def call(*arguments: Any) -> Any:
        return function(*(x.ctypes.data if isinstance(x, np.ndarray) else x for x in arguments))

    call.names = [one.split()[-1].strip("*") for one in declared]  # type: ignore[attr-defined]
    return call


GUARD = 4096  # numbers before and after an output
EDGE = "an edge: a last tile or vector that is not full."


class guarded:
    """An output array between guards: ``with guarded("c", (M, N)) as c`` notices writes outside.

    The output starts as NaN. Raises Wrong for a write outside, with a suspicion.
    """

    def __init__(self, name: str, shape: tuple[int, ...], suspicion: str = EDGE) -> None:
        self.name, self.suspicion = name, suspicion
        n = int(np.prod(shape))
        self._all: NDArray[np.float32] = np.full(n + 2 * GUARD, 12345.0, np.float32)
        self.array = self._all[GUARD : GUARD + n].reshape(shape)
        self.array[...] = np.nan

    def __enter__(self) -> NDArray[np.float32]:
        return self.array

    def __exit__(self, *error: object) -> None:
        n = self.array.size
        outside = np.flatnonzero(np.r_[self._all[:GUARD], self._all[GUARD + n :]] != 12345.0)
        if outside.size and error[0] is None:
            first = int(outside[0])
            where = (
                f"{GUARD - first} before its start"
                if first < GUARD
                else (f"{first - GUARD} past its end")
            )
            raise Wrong(
                f"the program writes outside of {self.name}: {outside.size} numbers, the first "
                f"{where}.\nSuspicion: {self.suspicion}"
            )
