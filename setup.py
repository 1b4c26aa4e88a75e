"""Build toynn's Cython modules: the kernels once per ISA level, everything else once.

Cython translates each kernel of toynn/_kernels to C once. That C is then compiled once per level,
as toynn._kernels.<level>.<op>, with that level's flags; toynn/_kernels/__init__.py picks a level.

TOYNN_OPENMP=0   build without OpenMP (single-threaded kernels)
TOYNN_DEBUG=1    bounds, initialisation and overflow checks in all Cython code
"""

import os
import platform
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path

from Cython.Build import cythonize
from setuptools import Extension, setup

MSVC = sys.platform == "win32"
X86 = platform.machine().lower() in ("x86_64", "amd64")
JOBS = os.cpu_count() or 1
DEBUG = os.environ.get("TOYNN_DEBUG", "0") == "1"
BUILD = Path("build/cython")

# Flags per level, worst first. A further level (amx) is a further row.
LEVELS: dict[str, list[str]] = {"generic": []}
if X86 and not MSVC:
    LEVELS["avx2"] = ["-mavx2", "-mfma"]
    LEVELS["avx512"] = [
        *("-mavx512f", "-mavx512bw", "-mavx512vl", "-mavx512dq", "-mfma"),
        "-mprefer-vector-width=512",
    ]

# Never -ffast-math: NaN must stay NaN. These only drop errno and floating-point traps.
COMPILE = ["-O3", "-g0", "-fno-math-errno", "-fno-trapping-math", "-ffp-contract=fast"]
if MSVC:
    COMPILE = ["/O2"]

DIRECTIVES = {
    "language_level": 3,
    "boundscheck": DEBUG,
    "initializedcheck": DEBUG,
    "overflowcheck": DEBUG,
    "wraparound": False,
    "cdivision": True,
    "embedsignature": True,
    "freethreading_compatible": False,
}

PROBE = r"""
#include <omp.h>
#include <stdio.h>
int main(void) {
    int n = 0;
    #pragma omp parallel num_threads(2) reduction(+:n)
    n += 1;
    printf("%d", n);
    return 0;
}
"""


def openmp_flags() -> list[str]:
    """Find the flag with which a five-line OpenMP program compiles, links and runs."""
    if os.environ.get("TOYNN_OPENMP", "1") == "0":
        print("toynn: OpenMP off (TOYNN_OPENMP=0)")
        return []
    if MSVC:
        return ["/openmp"]
    compiler = shlex.split(os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc")
    with tempfile.TemporaryDirectory() as folder:
        source, program = Path(folder, "probe.c"), Path(folder, "probe")
        source.write_text(PROBE)
        try:
            for command in ([*compiler, "-fopenmp", source, "-o", program], [program]):
                subprocess.run(command, check=True, capture_output=True, timeout=60)
        except (OSError, subprocess.SubprocessError) as error:
            print(f"toynn: no OpenMP ({error}): kernels will use one thread")
            return []
    print("toynn: OpenMP found")
    return ["-fopenmp"]


def per_level(kernel: Extension, openmp: list[str]) -> list[Extension]:
    """One extension for each level from the C of one kernel."""
    op = kernel.name.rpartition(".")[2]
    built = []
    for level, flags in LEVELS.items():
        folder = Path("toynn/_kernels", level)
        source = BUILD / level / f"{op}.c"
        for path in (folder, source.parent):
            path.mkdir(parents=True, exist_ok=True)
        (folder / "__init__.py").touch()
        text = Path(kernel.sources[0]).read_bytes()
        if not source.exists() or source.read_bytes() != text:
            shutil.copyfile(kernel.sources[0], source)
        built.append(
            Extension(
                f"toynn._kernels.{level}.{op}",
                [source.as_posix()],
                include_dirs=["toynn/_kernels"],
                extra_compile_args=[*COMPILE, *flags, *openmp],
                extra_link_args=openmp,
                depends=kernel.depends,
            )
        )
    return built


def extensions() -> list[Extension]:
    """All extensions: kernels per level, the modules built once, Cython's shared utilities."""
    openmp = openmp_flags()
    headers = sorted(path.as_posix() for path in Path("toynn/_kernels").glob("*.h"))
    kernels = [
        Extension(f"toynn._kernels.{path.stem}", [path.as_posix()], depends=headers)
        for path in sorted(Path("toynn/_kernels").glob("*.pyx"))
        if path.stem != "cpu"
    ]
    once = [
        Extension("toynn._cyutility", sources=["toynn/_cyutility.c"]),
        Extension("toynn._kernels.cpu", ["toynn/_kernels/cpu.pyx"], depends=headers),
        *(
            Extension(f"toynn.backends.cpu.{path.stem}", [path.as_posix()])
            for path in sorted(Path("toynn/backends/cpu").glob("*.pyx"))
        ),
    ]
    for extension in once:
        extension.include_dirs = ["toynn/_kernels", "toynn/backends/cpu"]
        extension.extra_compile_args = [*COMPILE, *openmp]
        extension.extra_link_args = openmp
    translated = cythonize(
        [*kernels, *once],
        build_dir=BUILD.as_posix(),
        compiler_directives=DIRECTIVES,
        nthreads=JOBS,
        shared_utility_qualified_name="toynn._cyutility",
    )
    names = {kernel.name for kernel in kernels}
    built = [extension for extension in translated if extension.name not in names]
    for kernel in translated:
        if kernel.name in names:
            built += per_level(kernel, openmp)
    return built


if __name__ == "__main__":  # cythonize's workers may import this file
    setup(ext_modules=extensions(), options={"build_ext": {"parallel": JOBS}})
