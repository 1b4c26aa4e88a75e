"""The build and the machine: what ``toynn config`` prints."""

import platform
import sys
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path

from toynn import _kernels, backends
from toynn.backends.cpu.precision import multiplies_in
from toynn.backends.threads import get_num_threads
from toynn.distributed import mpi
from toynn.numerics.precision import ALL_PRECISIONS, get_float32_matmul_precision
from toynn.system.machine import processor


def release() -> str:
    """Return the version of the installed package."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("toynn-train")
    except PackageNotFoundError:  # a source tree that was never installed
        return "unknown"


def other_toynn() -> str:
    """Return what is wrong if another distribution has files in this package's folder, or "".

    The package index has a ``toynn``, another program. Files of the two overwrite each other.
    """
    from importlib.metadata import PackageNotFoundError, distribution

    folder, wrong = Path(__file__).resolve().parents[1], []
    if not hasattr(sys.modules["toynn"], "show_config"):
        wrong.append(f"{folder / '__init__.py'} is not toynn-train's")
    with suppress(PackageNotFoundError):
        installed = distribution("toynn")
        # The egg-info of a checkout has no RECORD.
        if (
            installed.read_text("RECORD")
            and Path(str(installed.locate_file("toynn"))).resolve() == folder
        ):
            wrong.append(
                f"toynn {installed.version}, another program, has files in the same folder"
            )
    ways = "`pip uninstall toynn toynn-train`, then install toynn-train again"
    return f"{', and '.join(wrong)}; {ways}" if wrong else ""


def alike(backend: str, precisions: Collection[str]) -> dict[str, str]:
    """Return what processes must have in common to get the same bits from the same work.

    ``backend`` does the work, with matrix products in ``precisions``.
    """
    made_of = backends.get(backend).multiplies_in()
    used = [precision for precision in ALL_PRECISIONS if precision in precisions]
    products = (f"{each} ({made_of[each]})" if each in made_of else each for each in used)
    return {
        "toynn": release(),
        "backend": backend,
        "ISA level": _kernels.level,
        "matmul precision": ", ".join(products),
    }


def describe() -> dict[str, str]:
    """Return version, machine, ISA levels, threads and backends: texts by name."""
    others = [name for name in backends.available() if name != "cpu"]
    return {
        "toynn": release(),
        **({"another toynn": other} if (other := other_toynn()) else {}),
        "python": platform.python_version(),
        "platform": f"{platform.system()} {platform.machine()}",
        "processor": processor(),
        "ISA levels built": ", ".join(_kernels.built_levels()),
        "ISA levels of this CPU": ", ".join(_kernels.supported_levels()),
        "ISA level in use": _kernels.level,
        **{f"  not {name}": why for name, why in _kernels.unused_levels().items()},
        "threads": str(get_num_threads()),
        "matmul precision": get_float32_matmul_precision(),
        "precision auto": "{}: {}".format(*automatic_precision()),
        **{f"{precision} multiplies in": how for precision, how in multiplies_in().items()},
        "backends": ", ".join(backends.available()),
        **{f"  auto on {name}": "{}: {}".format(*automatic_precision(name)) for name in others},
        **{f"  not {name}": why for name, why in backends.unavailable().items()},
        "MPI": mpi.described(),
    }


def automatic_precision(backend: str = "cpu") -> tuple[str, str]:
    """Return the precision that "auto" means for a backend on this machine, and why.

    The backend decides. Raises BackendUnavailable if this machine has no backend of that name.
    """
    return backends.get(backend).automatic_precision()


def show_config() -> None:
    """Print version, ISA levels built and in use, threads and backends."""
    for name, value in describe().items():
        print(f"{name:24} {value}")
