/* Calls toynn/_kernels/base/pool.h as test_pool.py tells it; ends with 0 if all was as it should be.

   A case that hangs is ended by SIGALRM: no outcome depends on how long one takes. Windows has the
   cases without fork and signals (tests/windows.py). */
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>
#ifndef _WIN32
#include <sys/wait.h>
#endif

#ifdef TN_REFUSE /* so many threads are started, and no more */
#include <errno.h>
#include <pthread.h>
static int asked; /* how often */
static int refuse(pthread_t* t, const pthread_attr_t* a, void* (*run)(void*), void* x) {
    return asked++ < TN_REFUSE ? pthread_create(t, a, run, x) : EAGAIN;
}
#define pthread_create refuse
#endif
#include "pool.h"
#undef pthread_create

#define REQUIRE(what)                                                             \
    do {                                                                          \
        if (!(what)) {                                                            \
            fprintf(stderr, "%s:%d: not so: %s\n", __FILE__, __LINE__, #what);    \
            _exit(1);                                                             \
        }                                                                         \
    } while (0)

enum { MOST = 64 };

/* What a call leaves: plain memory, so that ThreadSanitizer sees whether the hand-over orders it. */
typedef struct {
    int m;             /* threads of the call */
    int came[MOST];    /* how often share i was computed */
    int nested[MOST];  /* threads that share i got for a call of its own */
    long added[MOST];  /* share i's part of 0 + 1 + ... + 999 */
    ptrdiff_t taken, tasks[MOST];
} task_t;

static void note_m(void* task, int i, int m) {
    (void)i;
    *(int*)task = m;
}

static void compute(void* task, int i, int m) {
    task_t* t = task;
    if (i == 0)
        t->m = m;
    t->came[i]++;
    tn_run_on_threads(note_m, &t->nested[i], 3);
    for (int k = i * 1000 / m; k < (i + 1) * 1000 / m; k++)
        t->added[i] += k;
    while (tn_take(&t->taken) < 100)
        t->tasks[i]++;
}

/* One call; returns on how many threads it was computed. */
static int call(int n) {
    task_t t = {0};
    long sum = 0, tasks = 0;
    tn_run_on_threads(compute, &t, n);
    REQUIRE(1 <= t.m && t.m <= (n < 1 ? 1 : n));
    for (int i = 0; i < MOST; i++) {
        REQUIRE(t.came[i] == (i < t.m));
        REQUIRE(t.nested[i] == (i < t.m));
        sum += t.added[i];
        tasks += t.tasks[i];
    }
    REQUIRE(sum == 999 * 1000 / 2);
    REQUIRE(tasks == 100);
    return t.m;
}

static void all_threads(void) { /* as many as were asked for: one, few, more than there are cores */
    REQUIRE(atomic_load(&tn_started) == 0);
    for (int n = -1; n < 10; n++) {
        REQUIRE(call(n) == (n < 2 ? 1 : n));
        REQUIRE(atomic_load(&tn_started) == (n < 2 ? 0 : n - 1)); /* no thread that nobody needs */
    }
    REQUIRE(call(MOST) == MOST);
    REQUIRE(call(3) == 3);
    REQUIRE(atomic_load(&tn_started) == MOST - 1);
}

static void many_calls(void) { /* back to back, and with pauses in which threads fall asleep */
    for (int k = 0; k < 20000; k++)
        REQUIRE(call(2 + k % 2) == 2 + k % 2);
    for (int k = 0; k < 20; k++) {
        usleep(2000);
        REQUIRE(call(3) == 3);
    }
}

static void* caller(void* n) {
    for (int k = 0; k < 3000; k++)
        REQUIRE(call(*(int*)n) == *(int*)n);
    return n;
}

static void several_callers(void) { /* each has workers of its own */
    static int n[4] = {2, 3, 2, 4};
    pthread_t threads[4];
    for (int i = 0; i < 4; i++)
        REQUIRE(pthread_create(&threads[i], NULL, caller, &n[i]) == 0);
    for (int i = 0; i < 4; i++)
        pthread_join(threads[i], NULL);
    REQUIRE(atomic_load(&tn_started) <= 1 + 2 + 1 + 3);
}

#ifdef _WIN32
static void fork_in_the_middle(void) {}
static void signals(void) {}
static void alarm(int seconds) { (void)seconds; }
#else
static void* call_for_ever(void* n) {
    for (;;)
        call(*(int*)n);
    return n;
}

static void in_a_child(int depth) {
    const pid_t child = fork();
    REQUIRE(child >= 0);
    if (child == 0) {
        alarm(120);
        REQUIRE(atomic_load(&tn_started) == 0);
        for (int k = 0; k < 10; k++)
            REQUIRE(call(3) == 3);
        if (depth)
            in_a_child(depth - 1);
        _exit(0);
    }
    int status;
    waitpid(child, &status, 0);
    REQUIRE(status == 0);
}

static void fork_in_the_middle(void) { /* while other threads hold workers and locks */
    static int n[2] = {3, 5};
    pthread_t threads[2];
    for (int i = 0; i < 2; i++)
        REQUIRE(pthread_create(&threads[i], NULL, call_for_ever, &n[i]) == 0);
    for (int k = 0; k < 30; k++)
        in_a_child(1);
    REQUIRE(call(4) == 4);
} /* and the process ends while they compute */

static void note_signals(void* task, int i, int m) {
    sigset_t own;
    (void)m;
    pthread_sigmask(SIG_SETMASK, NULL, &own);
    const int caught[] = {SIGINT, SIGTERM, SIGALRM, SIGUSR1, SIGCHLD, SIGPROF};
    for (size_t k = 0; k < sizeof caught / sizeof *caught; k++)
        REQUIRE(sigismember(&own, caught[k]) == (i > 0));
    const int faults[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL};
    for (size_t k = 0; k < sizeof faults / sizeof *faults; k++)
        REQUIRE(sigismember(&own, faults[k]) == 0);
    atomic_fetch_add((atomic_int*)task, 1);
}

static void signals(void) { /* are the program's own threads' to handle, but for a thread's faults */
    atomic_int came = 0;
    tn_run_on_threads(note_signals, &came, 4);
    REQUIRE(came == 4);
}

#endif

static void recorded(void) { /* shares and pieces, alone without a worker; too many are counted */
    long long numbers[256];
    for (int alone = 1; alone >= 0; alone--) {
        tn_recording to = {.numbers = numbers, .capacity = 256, .alone = alone};
        REQUIRE(atomic_load(&tn_started) == 0);
        tn_begin_recording(&to);
        tn_begin_launch();
        REQUIRE(call(4) == 4);
        tn_end_launch("name", 7, 9);
        tn_recorder = NULL;
        const int pieces = alone ? 100 + 4 : 0; /* each share looks for one more */
        const long long* end = numbers + 1 + TN_CALL_HEAD + 4 + pieces;
        REQUIRE(to.size == end + 5 - numbers);
        REQUIRE(numbers[0] == TN_BEGIN && numbers[1] == TN_CALL);
        REQUIRE(numbers[2] == 4 && numbers[3] == pieces);
        for (const long long* each = numbers + 4; each < end; each++)
            REQUIRE(*each >= 0);
        REQUIRE(end[0] == TN_LAUNCH && end[2] == 7 && end[3] == 9 && end[4] >= 0);
    }
    tn_recording full = {.numbers = numbers, .capacity = 20, .alone = true};
    tn_begin_recording(&full);
    REQUIRE(call(4) == 4 && full.size == TN_CALL_HEAD + 4 + 104);
    REQUIRE(call(4) == 4 && full.size > full.capacity);
    tn_recorder = NULL;
    REQUIRE(call(4) == 4);
}

static void no_more_threads(void) {
#ifdef TN_REFUSE
    REQUIRE(call(1 + TN_REFUSE) == 1 + TN_REFUSE && tn_refused() == 0);
    for (int k = 0; k < 3; k++)
        REQUIRE(call(8) == 1 + TN_REFUSE);
    REQUIRE(asked == TN_REFUSE + 1); /* the system is not asked again */
    REQUIRE(tn_refused() == 1 + TN_REFUSE);
    tn_ask_again();
    REQUIRE(tn_refused() == 0);
    REQUIRE(call(8) == 1 + TN_REFUSE);
    REQUIRE(asked == TN_REFUSE + 2);
#endif
}

int main(int count, char** words) {
    void (*cases[])(void) = {
        all_threads, many_calls, several_callers, fork_in_the_middle, signals,
        recorded, no_more_threads,
    };
    REQUIRE(count == 2);
    alarm(300);
    cases[atoi(words[1])]();
    return 0;
}
