"""The kernels under ThreadSanitizer, by hand.

    python -m tests.tsan
    python -m tests.tsan -k threads_agree tests/kernels/test_kernels.py

A build of its own is made in --build (minutes at first), and pytest runs there with the other
arguments; without any, on all kernels on several threads, and on sessions in two. The first race
ends the process. The suite does so for the pool by itself.

``--plant`` lets each thread go on to the end of what is dealt beforehand, so that two write the
same rows: whoever doubts that a race would be seen sees one.
"""

import sys
from pathlib import Path

from tests.sanitized import asked, finish, loaded, make, pytest_words, runtime, steady

STRETCH = "(i + 1) * fixed // m"  # where the rows end that a thread always has

TESTS = ["-k", "threads", "tests/kernels/test_kernels.py", "tests/session/test_in_threads.py"]


def main() -> int:
    """Build, and run pytest with what is left of the arguments; return its exit code."""
    arguments, rest = asked(__doc__, "tsan", ("--plant", "store_true", "let threads overlap"))
    words = steady()
    if words is None:
        sys.exit(
            "tests.tsan: needs setarch -R (util-linux), which is not found, or which this system "
            "refuses, as a container may: run it where a process may fix its addresses"
        )
    build = arguments.build.resolve()
    if arguments.plant:
        build = build.with_name(f"{build.name}-planted")
    make(build, "thread", "generic", plant if arguments.plant else None)
    settings = loaded(build, runtime("libtsan.so")) | {
        "TSAN_OPTIONS": "halt_on_error=1 ignore_noninstrumented_modules=1",
        "OPENBLAS_NUM_THREADS": "1",
        "TOYNN_ISA": "generic",
    }
    return finish([*words, *pytest_words(), *(rest or TESTS)], build, settings).returncode


def plant(build: Path) -> None:
    """Let two threads write the same rows."""
    parallel = build / "toynn/_kernels/base/_parallel.pxd"
    text = parallel.read_text()
    assert STRETCH in text
    parallel.write_text(text.replace(STRETCH, "fixed"))


if __name__ == "__main__":
    sys.exit(main())
