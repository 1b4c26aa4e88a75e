"""Compare toynn with NumPy and PyTorch on this machine: ``python bench/compare.py matmul``.

The contestants take turns within one run (A B C A B C ..), so that a burst of other load hits all
of them. A turn is an untimed call, which wakes the contestant's threads, and a few timed calls.
Each thread count runs in its own process, because libraries read the thread count and the allowed
instruction set only once, at import. A ratio is toynn's rate over the rate of the best other
contestant, by minima of time and by medians. Times include the call from Python, which decides the
smallest shapes.
"""

import argparse
import os
import subprocess
import sys
from pathlib import Path

from sections import SECTIONS

from toynn.numerics.precision import PRECISIONS

#: Variables that limit each library to an instruction set; the keys are toynn's levels.
ISA = {
    "avx512": {
        "ATEN_CPU_CAPABILITY": "avx512",
        "ONEDNN_MAX_CPU_ISA": "AVX512_CORE",
        "MKL_ENABLE_INSTRUCTIONS": "AVX512",
        "OPENBLAS_CORETYPE": "SkylakeX",
    },
    "avx2": {
        "ATEN_CPU_CAPABILITY": "avx2",
        "ONEDNN_MAX_CPU_ISA": "AVX2",
        "MKL_ENABLE_INSTRUCTIONS": "AVX2",
        "OPENBLAS_CORETYPE": "Haswell",
    },
}


def environment(n_threads: int, isa: str | None) -> dict[str, str]:
    """Return the variables that set the threads and the highest level of all contestants."""
    inherited = {k: v for k, v in os.environ.items() if k not in {"TOYNN_ISA", *ISA["avx2"]}}
    chosen = {"TOYNN_ISA": isa, **ISA[isa]} if isa else {}
    return inherited | chosen | {"OPENBLAS_NUM_THREADS": str(n_threads)}


def main() -> None:
    """Run the sections asked for, once for each number of threads."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("sections", nargs="+", metavar="section", help=", ".join(SECTIONS))
    parser.add_argument("--threads", nargs="+", type=int, default=[1, 2])
    parser.add_argument("--rounds", type=int, default=5)
    exact = "of toynn's products; medium races with PyTorch's bfloat16 autocast too"
    parser.add_argument("--precision", choices=PRECISIONS, default="highest", help=exact)
    parser.add_argument("--only", default="", help="part of a shape's name, e.g. head")
    parser.add_argument("--isa", choices=ISA, help="limit all contestants to these instructions")
    options = parser.parse_args()
    for section in options.sections:
        if section not in SECTIONS:
            parser.error(f"no section {section}; expected one of {', '.join(SECTIONS)}")
    for n_threads in options.threads:
        given = [str(n_threads), str(options.rounds), options.precision, options.only]
        command = [sys.executable, Path(__file__).with_name("sections.py"), *given]
        variables = environment(n_threads, options.isa)
        done = subprocess.run([*command, *options.sections], env=variables)
        if done.returncode:
            sys.exit(done.returncode)


if __name__ == "__main__":
    main()
