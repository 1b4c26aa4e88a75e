"""What this build is and what it runs on."""

import platform
from importlib.metadata import PackageNotFoundError, version

from toynn import _kernels, backends
from toynn.precision import get_float32_matmul_precision
from toynn.threads import get_num_threads

__all__ = ["describe", "release", "show_config"]


def release() -> str:
    """Return the version of the installed package."""
    try:
        return version("toynn")
    except PackageNotFoundError:  # a source tree that was never installed
        return "unknown"


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
        **{f"{precision} multiplies in": how for precision, how in _products().items()},
        "backends": ", ".join(backends.available()),
    }


def _products() -> dict[str, str]:
    """Return what the products of each precision are made of."""
    matmul = _kernels.load("matmul", _kernels.level)
    if matmul.multiplies_tiles():
        unit = "AMX in software" if _kernels.software_tiles() else "AMX"
        return {
            "highest": f"three parts of bfloat16, six products ({unit})",
            "high": f"two parts of bfloat16, three products ({unit})",
            "medium": f"bfloat16 ({unit})",
        }
    medium = "float32 (bfloat16 needs AVX512_BF16, the level avx512, a build by GCC 12 or clang)"
    if matmul.multiplies_pairs():
        medium = "bfloat16 (AVX512_BF16)"
    return {"highest": "float32", "high": "float32", "medium": medium}


def show_config() -> None:
    """Print version, ISA levels built and in use, threads, OpenMP and backends."""
    for name, value in describe().items():
        print(f"{name:24} {value}")
