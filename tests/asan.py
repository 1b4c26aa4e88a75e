"""The kernels under AddressSanitizer and UndefinedBehaviorSanitizer, at each level, by hand.

    python -m tests.asan --levels avx2,avx512 [pytest's arguments]

A build of its own is made in --build (minutes at first, at -O1), and pytest runs there once per
level that this CPU has, by default what compiled code is called by: kernel cases, quantized types,
sessions. The first finding ends the process. CI does the same at level generic. Tests that only
compare references with each other are left out: they run no compiled code.
"""

import sys

from tests.sanitized import asked, finish, loaded, make, pytest_words, runtime

TESTS = (
    "tests/kernels/test_kernels.py",
    "tests/kernels/test_empty.py",
    "tests/formats/test_quants.py",
    "tests/session/test_session.py",
    "tests/session/test_fork.py",
    *("-k", "not reference_gradients"),
)
SUPPORTED = "from toynn import _kernels as k; print(*k.supported_levels())"


def main() -> int:
    """Build, and run pytest at each level; return its first exit code that is not 0."""
    arguments, rest = asked(__doc__, "asan", ("--levels", "store", "default: avx2,avx512"))
    build, levels = arguments.build.resolve(), arguments.levels or "avx2,avx512"
    make(build, "address,undefined", levels, TOYNN_DEBUG="1")
    settings = loaded(build, runtime("libasan.so")) | {
        "ASAN_OPTIONS": "detect_leaks=0,use_sigaltstack=0",
        "PYTHONMALLOC": "malloc",
    }
    supported = finish([sys.executable, "-c", SUPPORTED], build, settings, capture=True).stdout
    for level in levels.split(","):
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
