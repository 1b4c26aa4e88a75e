"""mpi4py, an extra: loaded when a process joins a group, or describes its MPI."""

import atexit
import shutil
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from toynn.errors import BackendUnavailable

__all__ = ["INSTALL", "described", "load", "mpiexec"]

INSTALL = "pip install mpi4py mpich, or mpi4py beside an MPI of your own"


def load(*, start: bool) -> Any:
    """Return mpi4py's module MPI; with ``start`` it joins the other processes.

    Raises BackendUnavailable where mpi4py or the library that it needs is missing.
    """
    try:
        import mpi4py

        if not start:
            mpi4py.rc.initialize = False
        from mpi4py import MPI
    except (ImportError, RuntimeError) as error:  # RuntimeError: its wheel finds no library of MPI
        found = _version()
        what = f"mpi4py {found} cannot be used" if found else "mpi4py is not installed"
        why = str(error).partition("\n")[0]  # of each place where it looked there is a line
        raise BackendUnavailable(f"{what} ({why}): {INSTALL}") from error
    if start and not MPI.Is_initialized():  # it was looked at before
        MPI.Init_thread()
        atexit.register(MPI.Finalize)
    return MPI


def described() -> str:
    """Return which MPI training by several processes would use, or why there is none."""
    found = _version()
    if found is None:
        return f"none: {INSTALL}"
    try:
        library = load(start=False).Get_library_version()
    except BackendUnavailable as error:
        return f"none: {error}"
    return f"{named(library)}, by mpi4py {found}; {mpiexec() or 'no mpiexec is found'}"


def named(library: str) -> str:
    """Return name and version of an MPI library, from what it says of itself, which may be long."""
    words = library.replace("\0", "").replace(":", " ").split()
    if words[:2] == ["MPICH", "Version"]:
        return f"MPICH {words[2]}"
    return " ".join(words[:4]).partition(",")[0]


def mpiexec() -> str | None:
    """Return the path of mpiexec; the one in this Python's folder is preferred."""
    beside = Path(sys.executable).with_name("mpiexec")
    return str(beside) if beside.exists() else shutil.which("mpiexec")


def _version() -> str | None:
    try:
        return version("mpi4py")
    except PackageNotFoundError:
        return None
