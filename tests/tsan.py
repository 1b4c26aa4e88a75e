"""The kernels under ThreadSanitizer, by hand.

    python -m tests.tsan -k threads_agree tests/kernels/test_kernels.py

A build of its own is made in --build (minutes at first), and pytest runs there with the other
arguments. The sanitizer cannot see how libgomp's threads wait for one another, and would report all
that they hand over. So GOMP_parallel and the rest that the kernels call is done with pthreads here,
whose waits it sees, in a library that is loaded first. The first race ends the process.

``--plant`` lets each thread go on to the end of all work, so that two write the same rows: whoever
doubts that a race would be seen sees one.
"""

import os
import sys
from pathlib import Path

from tests.sanitized import asked, finish, loaded, make, pytest_words, run, runtime

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
STRETCH = "min((i + 1) * blocks // a.n_threads * block, n)"  # where a thread's rows end


def main() -> int:
    """Build, and run pytest with what is left of the arguments; return its exit code."""
    arguments, rest = asked(__doc__, "tsan", ("--plant", "store_true", "let threads overlap"))
    build = arguments.build.resolve()
    if arguments.plant:
        build = build.with_name(f"{build.name}-planted")
    make(build, "thread", "generic", plant if arguments.plant else None)
    (build / "threads.c").write_text(THREADS)
    compiler = [*os.environ.get("CC", "cc").split(), "-fsanitize=thread", "-g", "-fPIC", "-shared"]
    run([*compiler, "threads.c", "-o", "threads.so"], build, {})
    settings = loaded(build, runtime("libtsan.so"), str(build / "threads.so")) | {
        "TSAN_OPTIONS": "halt_on_error=1 ignore_noninstrumented_modules=1",
        "OPENBLAS_NUM_THREADS": "1",
        "TOYNN_ISA": "generic",
    }
    return finish(["setarch", "-R", *pytest_words(), *rest], build, settings).returncode


def plant(build: Path) -> None:
    """Let two threads write the same rows."""
    parallel = build / "toynn/_kernels/_parallel.pxd"
    text = parallel.read_text()
    assert STRETCH in text
    parallel.write_text(text.replace(STRETCH, "n"))


if __name__ == "__main__":
    sys.exit(main())
