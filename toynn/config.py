"""What this build is and what it runs on."""

import platform
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from toynn import _kernels, backends
from toynn._kernels import cpu
from toynn.distributed import mpi
from toynn.precision import get_float32_matmul_precision
from toynn.threads import get_num_threads

__all__ = ["alike", "automatic_precision", "describe", "release", "show_config"]


def release() -> str:
    """Return the version of the installed package."""
    try:
        return version("toynn")
    except PackageNotFoundError:  # a source tree that was never installed
        return "unknown"


def alike() -> dict[str, str]:
    """Return what processes must have in common to get the same bits from the same work."""
    return {
        "toynn": release(),
        "ISA level": _kernels.level,
        "matmul precision": get_float32_matmul_precision(),
        **{f"{precision} multiplies in": how for precision, how in _products().items()},
    }


def describe() -> dict[str, str]:
    """Return version, ISA levels, threads, OpenMP and backends, as text by name."""
    return {
        "toynn": release(),
        "python": platform.python_version(),
        "platform": f"{platform.system()} {platform.machine()}",
        "ISA levels built": ", ".join(_kernels.built_levels()),
        "ISA levels of this CPU": ", ".join(_kernels.supported_levels()),
        "ISA level in use": _kernels.level,
        **{f"  not {name}": why for name, why in _kernels.unused_levels().items()},
        "OpenMP": "yes" if _kernels.has_openmp() else "no",
        "threads": str(get_num_threads()),
        "matmul precision": get_float32_matmul_precision(),
        "precision auto": "{}: {}".format(*automatic_precision()),
        **{f"{precision} multiplies in": how for precision, how in _products().items()},
        "backends": ", ".join(backends.available()),
        **{f"  not {name}": why for name, why in backends.unavailable().items()},
        "MPI": mpi.described(),
    }


def _products() -> dict[str, str]:
    """Return what the products of each precision are made of."""
    matmul = _kernels.load("matmul", _kernels.level)
    if matmul.multiplies_tiles():
        unit = "AMX in software" if _kernels.software_tiles() else "AMX"
        return {
            "highest": f"three parts of bfloat16, six products ({unit})",
            "high": f"two parts of bfloat16, three products ({unit})",
            "medium": f"bfloat16 ({unit})" + _few_rows(matmul),
        }
    medium = "bfloat16 (AVX512_BF16)" if matmul.multiplies_pairs() else f"float32 ({_no_pairs()})"
    return {"highest": "float32", "high": "float32", "medium": medium + _few_rows(matmul)}


def _few_rows(matmul: Any) -> str:
    """Return what medium makes of a few rows by blocks."""
    return "; a few rows by blocks: 8 bits (AVX512_VNNI)" if matmul.multiplies_int8() else ""


def automatic_precision() -> tuple[str, str]:
    """Return the precision that "auto" stands for on this CPU, and why.

    "medium" where it multiplies bfloat16 at least as fast as "highest" its floats: with AMX, and
    with AVX512_BF16 on CPUs that gain by it; else "highest". The kind of CPU decides, no clock.
    """
    matmul = _kernels.load("matmul", _kernels.level)
    if matmul.multiplies_tiles():
        return "medium", "bfloat16 in the tiles of AMX is the fastest that this CPU has"
    if matmul.multiplies_pairs():
        return "medium", "this CPU multiplies bfloat16 (AVX512_BF16) faster than float32"
    return "highest", f"medium would not be faster: {_no_pairs()}"


def _no_pairs() -> str:
    """Return why no pairs of bfloat16 are multiplied."""
    vendor, family = cpu.maker()
    if cpu.has_avx512_bf16() and not cpu.gains_by_pairs():
        return f"AVX512_BF16 is slower than float32 on a CPU of {vendor}, family {family}"
    return "bfloat16 needs AVX512_BF16, the level avx512, a build by GCC 12 or clang"


def show_config() -> None:
    """Print version, ISA levels built and in use, threads, OpenMP and backends."""
    for name, value in describe().items():
        print(f"{name:24} {value}")
