"""The kernels under AddressSanitizer and UndefinedBehaviorSanitizer, at each level, by hand.

    python -m tests.asan --levels avx2,avx512 [pytest's arguments]

A build of its own is made in --build (minutes at first, at -O1), and pytest runs there once per
level that this CPU has, by default what compiled code is called by: kernel cases, quantized types,
sessions. The first finding ends the process. CI does the same at level generic.
"""

import argparse
import sys
import tempfile
from pathlib import Path

from tests.tsan import copy_tree, finish, pytest_words, run, runtime

TESTS = (
    "tests/kernels/test_kernels.py",
    "tests/kernels/test_gradcheck.py",
    "tests/kernels/test_empty.py",
    "tests/formats/test_quants.py",
    "tests/session/test_session.py",
    "tests/session/test_fork.py",
)
SUPPORTED = "from toynn import _kernels as k; print(*k.supported_levels())"


def main() -> int:
    """Build, and run pytest at each level; return its first exit code that is not 0."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--build", type=Path, default=Path(tempfile.gettempdir()) / "toynn-asan")
    parser.add_argument("--levels", default="avx2,avx512", help="default: avx2,avx512")
    arguments, rest = parser.parse_known_args()
    build, levels = arguments.build.resolve(), arguments.levels.split(",")
    copy_tree(build)
    settings = {"TOYNN_SANITIZE": "address,undefined", "TOYNN_DEBUG": "1"}
    settings["TOYNN_LEVELS"] = arguments.levels
    run([sys.executable, "setup.py", "-q", "build_ext", "--inplace"], build, settings)
    settings = {
        "LD_PRELOAD": f"{runtime('libasan.so')} {runtime('libstdc++.so')}",
        "ASAN_OPTIONS": "detect_leaks=0,use_sigaltstack=0",
        "PYTHONMALLOC": "malloc",
        "PYTHONPATH": str(build),
    }
    supported = finish([sys.executable, "-c", SUPPORTED], build, settings, capture=True).stdout
    for level in levels:
        if level not in supported.split():
            print(f"{level}: skipped: this CPU has {supported.strip()}", flush=True)
            continue
        print(f"{level}:", flush=True)
        words = [*pytest_words(), *(rest or TESTS)]
        if code := finish(words, build, settings | {"TOYNN_ISA": level}).returncode:
            return code
    return 0


if __name__ == "__main__":
    sys.exit(main())
