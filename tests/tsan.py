"""The kernels under ThreadSanitizer, by hand.

    python -m tests.tsan -k threads_agree tests/kernels/test_kernels.py

A build of its own is made in --build (minutes at first), and pytest runs there with the other
arguments. The sanitizer cannot see how libgomp's threads wait for one another, and would report all
that they hand over. So GOMP_parallel and the rest that the kernels call is done with pthreads here,
whose waits it sees, in a library that is loaded first. The first race ends the process.

``--plant`` lets each thread go on to the end of all work, so that two write the same rows: whoever
doubts that a race would be seen sees one.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
THREADS = r"""
#include <pthread.h>
#include <stdbool.h>

typedef struct {
    int n;
    pthread_barrier_t all;
    pthread_mutex_t lock;
    bool begun; /* a loop whose parts are dealt on demand: one in a region */
    long next, end, incr, chunk;
} team_t;
typedef struct {
    team_t* team;
    int id;
    void (*work)(void*);
    void* data;
} member_t;
static __thread member_t* self;

int omp_get_max_threads(void) { return 2; }
int omp_get_thread_num(void) { return self ? self->id : 0; }
int omp_get_num_threads(void) { return self ? self->team->n : 1; }

static void* run(void* member) {
    member_t* before = self;
    self = member;
    self->work(self->data);
    self = before;
    return 0;
}

void GOMP_parallel(void (*work)(void*), void* data, unsigned n, unsigned flags) {
    team_t team = {.n = n ? (int)n : 2};
    member_t members[team.n];
    pthread_t threads[team.n];
    pthread_barrier_init(&team.all, 0, team.n);
    pthread_mutex_init(&team.lock, 0);
    for (int i = team.n - 1; i >= 0; i--) {
        members[i] = (member_t){&team, i, work, data};
        if (i) pthread_create(&threads[i], 0, run, &members[i]);
        else run(&members[0]);
    }
    for (int i = 1; i < team.n; i++) pthread_join(threads[i], 0);
    pthread_barrier_destroy(&team.all);
}

void GOMP_barrier(void) { if (self) pthread_barrier_wait(&self->team->all); }

bool GOMP_loop_nonmonotonic_dynamic_next(long* first, long* end) {
    team_t* t = self->team;
    pthread_mutex_lock(&t->lock);
    *first = t->next;
    *end = *first + t->chunk * t->incr < t->end ? *first + t->chunk * t->incr : t->end;
    t->next = *end;
    pthread_mutex_unlock(&t->lock);
    return *first < *end;
}

bool GOMP_loop_nonmonotonic_dynamic_start(
    long begin, long end, long incr, long chunk, long* first, long* last
) {
    team_t* t = self->team;
    pthread_mutex_lock(&t->lock);
    if (!t->begun) t->begun = true, t->next = begin, t->end = end, t->incr = incr, t->chunk = chunk;
    pthread_mutex_unlock(&t->lock);
    return GOMP_loop_nonmonotonic_dynamic_next(first, last);
}

void GOMP_loop_end_nowait(void) {}
"""
STRETCH = "part(a, i * n // a.n_threads, (i + 1) * n // a.n_threads)"


def main() -> int:
    """Build, and run pytest with what is left of the arguments; return its exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--build", type=Path, default=Path(tempfile.gettempdir()) / "toynn-tsan")
    parser.add_argument("--plant", action="store_true", help="let threads overlap")
    arguments, rest = parser.parse_known_args()
    build = arguments.build.resolve()
    if arguments.plant:
        build = build.with_name(f"{build.name}-planted")
    copy_tree(build)
    parallel = build / "toynn/_kernels/_parallel.pxd"
    if arguments.plant:
        text = parallel.read_text()
        assert STRETCH in text
        parallel.write_text(text.replace(STRETCH, "part(a, i * n // a.n_threads, n)"))
    settings = {"TOYNN_SANITIZE": "thread", "TOYNN_LEVELS": "generic"}
    run([sys.executable, "setup.py", "-q", "build_ext", "--inplace"], build, settings)
    (build / "threads.c").write_text(THREADS)
    compiler = [*os.environ.get("CC", "cc").split(), "-fsanitize=thread", "-g", "-fPIC", "-shared"]
    run([*compiler, "threads.c", "-o", "threads.so"], build, {})
    libraries = [runtime("libtsan.so"), str(build / "threads.so"), runtime("libstdc++.so")]
    settings = {
        "LD_PRELOAD": " ".join(libraries),
        "TSAN_OPTIONS": "halt_on_error=1 ignore_noninstrumented_modules=1",
        "OPENBLAS_NUM_THREADS": "1",
        "PYTHONPATH": str(build),
        "TOYNN_ISA": "generic",
    }
    return finish(["setarch", "-R", *pytest_words(), *rest], build, settings).returncode


def copy_tree(build: Path) -> None:
    """Copy the sources and tests into a folder for a build of their own."""
    build.mkdir(parents=True, exist_ok=True)
    for name in ("toynn", "tests", "setup.py", "pyproject.toml", "README.md", "LICENSE"):
        source, skipped = ROOT / name, shutil.ignore_patterns("*.so", "__pycache__")
        if source.is_dir():
            shutil.copytree(source, build / name, ignore=skipped, dirs_exist_ok=True)
        else:
            shutil.copy2(source, build / name)


def pytest_words() -> list[str]:
    """Return the words that start pytest in a build: without capture, which hides a report."""
    return [sys.executable, "-m", "pytest", "-q", "-s", "-p", "no:cacheprovider"]


def run(words: list[str], folder: Path, settings: dict[str, str]) -> None:
    """Run a command in a folder, which must succeed."""
    subprocess.run(words, cwd=folder, env=os.environ | settings, check=True)


def finish(
    words: list[str], folder: Path, settings: dict[str, str], *, capture: bool = False
) -> "subprocess.CompletedProcess[str]":
    """Run a command in a folder to its end."""
    return subprocess.run(
        words,
        cwd=folder,
        env=os.environ | settings,
        stdout=subprocess.PIPE if capture else None,
        text=True,
    )


def runtime(name: str) -> str:
    """Return the path of one of the compiler's libraries."""
    words = ["cc", f"-print-file-name={name}"]
    return subprocess.run(words, capture_output=True, text=True, check=True).stdout.strip()


if __name__ == "__main__":
    sys.exit(main())
