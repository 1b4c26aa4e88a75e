"""Load mpi4py, an optional dependency, when a process joins a group or describes its MPI."""

import atexit
import shutil
import sys
from pathlib import Path
from typing import Any

from toynn.errors import BackendUnavailable

INSTALL = "pip install mpi4py mpich, or mpi4py alone if you have an MPI"


def load(*, start: bool) -> Any:
    """Return mpi4py's module MPI; with ``start`` this process joins the others.

    Raises BackendUnavailable where mpi4py or its MPI library is missing.
    """
    try:
        import mpi4py

        if not start:
            mpi4py.rc.initialize = False
        from mpi4py import MPI
    except (ImportError, RuntimeError) as error:  # RuntimeError: its wheel finds no MPI library
        installed = _version()
        what = f"mpi4py {installed} cannot be used" if installed else "mpi4py is not installed"
        why = str(error).partition("\n")[0]  # it lists every place it looked in
        raise BackendUnavailable(f"{what} ({why}): {INSTALL}") from error
    if start and not MPI.Is_initialized():  # it was loaded without start before
        MPI.Init_thread()
        atexit.register(MPI.Finalize)
    return MPI


def described() -> str:
    """Return the MPI that training by several processes would use, or why it has none."""
    installed = _version()
    if installed is None:
        return f"none: {INSTALL}"
    try:
        library = load(start=False).Get_library_version()
    except BackendUnavailable as error:
        return f"none: {error}"
    return f"{named(library)}, by mpi4py {installed}; {mpiexec() or 'no mpiexec was found'}"


def named(library: str) -> str:
    """Return the name and version of an MPI library from its long description of itself."""
    words = library.replace("\0", "").replace(":", " ").split()
    if words[:2] == ["MPICH", "Version"]:
        return f"MPICH {words[2]}"
    return " ".join(words[:4]).partition(",")[0]


def mpiexec() -> str | None:
    """Return the path of mpiexec; the one in this Python's folder is preferred."""
    beside = Path(sys.executable).with_name("mpiexec")
    return str(beside) if beside.exists() else shutil.which("mpiexec")


def _version() -> str | None:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("mpi4py")
    except PackageNotFoundError:
        return None
