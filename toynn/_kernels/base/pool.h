/* The thread pool: several threads run one function at once, each with a number of its own.

       tn_run_on_threads(work, task, n):    work(task, i, m)  for i = 0 .. m - 1,   1 <= m <= n

   It returns when all m calls have returned; the caller's own thread is number 0. m is n, except:

     - m is 1 in a call from within work();
     - m is smaller if the system refuses to start a thread, or TN_MOST_WORKERS run already. After
       a refusal the system is asked again only after tn_ask_again(); tn_refused() says how many
       threads there are.

   So no result may depend on m. The caller claims idle workers and starts the missing ones; two
   threads that call at once get different workers. A worker is started when it is first needed, and
   never ends. The hand-over, where r counts the worker's calls:

       caller                           worker i
       call = work, task, i, m          wait until go = r
       go = r                           work(task, i, m)
       work(task, 0, m)                 done = r
       wait until done = r              r = r + 1
       claimed = 0

   A waiting thread polls the number for TN_SPIN nanoseconds. The next kernel of a program usually
   comes within microseconds, and a sleeping thread takes tens of them to wake. Between polls it
   yields its core: to a worker, if there are more threads than cores, or to another process. Then
   it sleeps.

   Numbers are atomic and sequentially consistent. A waiting thread sets `asleep`, then reads the
   number. The other thread sets the number, then reads `asleep`. So at least one of them sees what
   the other wrote, and no thread sleeps through a call.

   A thread may record its calls for a while (tn_recording): the CPU time of each share. If it records
   `alone`, it computes all n shares itself, one after the other. So one core measures how any
   number of cores would share a call. Shares may also take pieces of work, one by one (tn_take).
   Share 0 then takes all pieces, so each piece is timed by itself. A piece may wait for one that was
   taken before it (tn_await_count).

   A forked child has no workers, only the thread that forked: it starts its own workers.
   Source of the hand-over: Dekker, in Dijkstra 1965, Cooperating sequential processes. */
#ifndef TOYNN_POOL_H
#define TOYNN_POOL_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <string.h>

#include "compiler.h"
#include "platform.h"

enum {
    TN_MOST_THREADS = 1024,
    TN_MOST_WORKERS = TN_MOST_THREADS - 1,
    TN_STACK = 1 << 21, /* bytes: many times what a kernel needs */
    TN_CACHE_LINE = 64,
    TN_LOOKS = 32 /* polls of a number between two reads of the clock */
};
#ifndef TN_SPIN
#define TN_SPIN 2000000
#endif

typedef void (*tn_work_fn)(void* task, int i, int m);

/* Tell the CPU that this loop waits. */
static inline void tn_pause(void) {
#if TN_GNU && (defined(__x86_64__) || defined(__i386__))
    __builtin_ia32_pause();
#elif TN_GNU && defined(__aarch64__)
    __asm__ __volatile__("isb" ::: "memory"); /* on most CPUs `yield` does nothing */
#elif defined(_WIN32)
    YieldProcessor();
#endif
}

typedef struct {
    tn_work_fn work;
    void* task;
    int i, m;
} tn_call;

/* A number that one thread waits for and another sets, with the call that the number stands for. */
typedef struct {
    _Alignas(TN_CACHE_LINE) atomic_uint number;
    atomic_bool asleep;
    tn_call call;
    _Alignas(TN_CACHE_LINE) tn_mutex mutex;
    tn_condition changed;
} tn_gate;

static void tn_await(tn_gate* gate, unsigned number) {
    for (long long now = 0, end = 0; now <= end; now = tn_nanoseconds()) {
        for (int look = 0; look < TN_LOOKS; look++) {
            if (atomic_load(&gate->number) == number)
                return;
            tn_pause();
        }
        if (end == 0)
            end = tn_nanoseconds() + TN_SPIN;
        tn_yield();
    }
    tn_lock(&gate->mutex);
    atomic_store(&gate->asleep, true);
    while (atomic_load(&gate->number) != number)
        tn_sleep(&gate->changed, &gate->mutex);
    atomic_store(&gate->asleep, false);
    tn_unlock(&gate->mutex);
}

static void tn_set(tn_gate* gate, unsigned number) {
    atomic_store(&gate->number, number);
    if (atomic_load(&gate->asleep)) {
        tn_lock(&gate->mutex); /* the other thread holds it from its last look until it sleeps */
        tn_unlock(&gate->mutex);
        tn_wake(&gate->changed);
    }
}

typedef struct tn_worker {
    tn_gate go, done;
    _Alignas(TN_CACHE_LINE) atomic_bool claimed;
    unsigned calls;         /* belongs, as does next, to the thread that claimed it */
    struct tn_worker* next; /* the next worker of the same caller */
} tn_worker;

static tn_worker tn_workers[TN_MOST_WORKERS];
static atomic_int tn_started;        /* how many workers run */
static atomic_bool tn_no_more;        /* the system refused to start another one */
static tn_mutex tn_starts = TN_MUTEX; /* held while a worker is started */
static _Thread_local bool tn_within;  /* this thread is within work() */

TN_ENTRY tn_run_worker(void* argument) {
    tn_worker* me = argument;
    tn_name_thread((int)(me - tn_workers) + 1);
    tn_within = true;
    for (unsigned r = 1;; r++) {
        tn_await(&me->go, r);
        me->go.call.work(me->go.call.task, me->go.call.i, me->go.call.m);
        tn_set(&me->done, r);
    }
    return 0;
}

/* In a forked child: the workers were not copied, and one of them may have held a lock. Other
   threads may have gone on while fork() copied page after page. So even a worker that tn_started
   does not count may hold numbers here: each is cleared before it starts. */
static void tn_forget_workers(void) {
    atomic_store(&tn_started, 0);
    atomic_store(&tn_no_more, false);
    tn_starts = (tn_mutex)TN_MUTEX;
}

/* Start worker i, unless another thread has done so; return whether it runs. */
static bool tn_start_worker(int i) {
    static atomic_bool watched;
    tn_worker* worker = &tn_workers[i];
    if (!atomic_load(&watched)) /* before the lock: a fork while it is held must be noticed */
        tn_watch_forks(tn_forget_workers); /* twice does no harm */
    atomic_store(&watched, true);
    tn_lock(&tn_starts);
    bool runs = i < atomic_load(&tn_started);
    if (!runs && !atomic_load(&tn_no_more)) {
        memset(worker, 0, sizeof(*worker)); /* see tn_forget_workers */
        tn_initialize(&worker->go.mutex, &worker->go.changed);
        tn_initialize(&worker->done.mutex, &worker->done.changed);
        runs = tn_start_thread(tn_run_worker, worker, TN_STACK);
        if (runs)
            atomic_store(&tn_started, i + 1);
        else
            atomic_store(&tn_no_more, true);
    }
    tn_unlock(&tn_starts);
    return runs;
}

/* How many threads there are, if the system refused to start another one; 0 if it did not. */
static inline int tn_refused(void) {
    return atomic_load(&tn_no_more) ? 1 + atomic_load(&tn_started) : 0;
}

static inline void tn_ask_again(void) { atomic_store(&tn_no_more, false); }

/* Claim up to `most` workers; return how many, and the list of them. */
static int tn_claim(int most, tn_worker** list) {
    int count = 0;
    for (int i = 0; i < TN_MOST_WORKERS && count < most; i++) {
        tn_worker* worker = &tn_workers[i];
        if (i >= atomic_load(&tn_started) && (atomic_load(&tn_no_more) || !tn_start_worker(i)))
            break;
        if (!atomic_load(&worker->claimed) && !atomic_exchange(&worker->claimed, true)) {
            *list = worker;
            list = &worker->next;
            count++;
        }
    }
    *list = NULL;
    return count;
}

/* What a thread records: rows of numbers, one after the other.

       TN_BEGIN                                  a launch begins
       TN_CALL m p cpu, m shares, p pieces       tn_run_on_threads
       TN_LAUNCH name nbytes wall cpu            the launch ends

   `cpu` is the caller's CPU time, its waiting included. All times are nanoseconds. */
enum { TN_BEGIN = -1, TN_CALL = -2, TN_LAUNCH = -3, TN_CALL_HEAD = 4 };

typedef struct {
    long long* numbers;
    ptrdiff_t size, capacity; /* beyond its capacity it only counts */
    bool alone;
    long long launched;       /* CPU time when the launch began */
    long long taken;          /* alone: CPU time when the current piece was taken; 0: no piece */
    long long clock;          /* what reading the clock takes: pieces and shares leave it out */
} tn_recording;

/* A call whose shares are timed. */
typedef struct {
    tn_work_fn work;
    void* task;
    long long* spent; /* m numbers */
    tn_recording* recording;
} tn_timed;

static _Thread_local tn_recording* tn_recorder; /* NULL: this thread records nothing */

static inline void tn_note(tn_recording* to, long long number) {
    if (to->size < to->capacity)
        to->numbers[to->size] = number;
    to->size++;
}

/* Begin to record on this thread. */
static inline void tn_begin_recording(tn_recording* to) {
    long long before = tn_cpu_nanoseconds();
    to->clock = before;
    for (int k = 0; k < 1000; k++) {
        const long long now = tn_cpu_nanoseconds();
        if (now - before < to->clock)
            to->clock = now - before;
        before = now;
    }
    to->size = 0;
    tn_recorder = to;
}

static inline void tn_begin_launch(void) {
    tn_note(tn_recorder, TN_BEGIN);
    tn_recorder->launched = tn_cpu_nanoseconds();
}

static inline void tn_end_launch(const char* name, long long nbytes, long long wall) {
    const long long cpu = tn_cpu_nanoseconds() - tn_recorder->launched - tn_recorder->clock;
    const long long row[] = {TN_LAUNCH, (ptrdiff_t)name, nbytes, wall, cpu};
    for (int k = 0; k < 5; k++)
        tn_note(tn_recorder, row[k]);
}

/* Note the current piece, which ends now. */
static inline void tn_end_piece(tn_recording* to, long long now) {
    if (to->taken)
        tn_note(to, now - to->taken > to->clock ? now - to->taken - to->clock : 0);
    to->taken = 0;
}

static void tn_time_share(void* task, int i, int m) {
    tn_timed* x = task;
    tn_recording* to = x->recording;
    const ptrdiff_t first = to->size;
    long long spent = -tn_cpu_nanoseconds();
    x->work(x->task, i, m);
    const long long now = tn_cpu_nanoseconds();
    spent += now;
    if (to->alone) {
        tn_end_piece(to, now);
        for (ptrdiff_t k = first; k < to->size && k < to->capacity; k++)
            spent -= to->numbers[k] + to->clock;
    }
    spent -= to->clock;
    x->spent[i] = spent > 0 ? spent : 0;
}

static void tn_share_out(tn_work_fn work, void* task, int n_threads);

static void tn_record_call(tn_recording* to, tn_work_fn work, void* task, int n_threads) {
    const ptrdiff_t size = to->size, head = TN_CALL_HEAD + n_threads;
    to->size += head;
    if (to->size > to->capacity) {
        tn_share_out(work, task, n_threads);
        return;
    }
    long long* row = to->numbers + size;
    tn_timed timed = {work, task, row + TN_CALL_HEAD, to};
    memset(row, 0, (size_t)head * sizeof(*row));
    const long long before = tn_cpu_nanoseconds();
    if (to->alone) {
        tn_within = true;
        for (int i = 0; i < n_threads; i++)
            tn_time_share(&timed, i, n_threads);
        tn_within = false;
    } else
        tn_share_out(tn_time_share, &timed, n_threads);
    row[0] = TN_CALL;
    row[1] = n_threads;
    row[2] = to->size - size - head;
    row[3] = tn_cpu_nanoseconds() - before + to->clock; /* of two looks, one is before or after */
}

static void tn_run_on_threads(tn_work_fn work, void* task, int n_threads) {
    if (tn_recorder && !tn_within)
        tn_record_call(tn_recorder, work, task, n_threads > 1 ? n_threads : 1);
    else
        tn_share_out(work, task, n_threads);
}

static void tn_share_out(tn_work_fn work, void* task, int n_threads) {
    tn_worker* team = NULL;
    const int m = n_threads < 2 || tn_within ? 1 : 1 + tn_claim(n_threads - 1, &team);
    int i = 0;
    for (tn_worker* each = team; each; each = each->next) {
        each->go.call = (tn_call){work, task, ++i, m};
        tn_set(&each->go, ++each->calls);
    }
    const bool before = tn_within;
    tn_within = true;
    work(task, 0, m);
    tn_within = before;
    for (tn_worker *each = team, *next; each; each = next) {
        next = each->next;
        tn_await(&each->done, each->calls);
        atomic_store(&each->claimed, false);
    }
}

/* Take the number of the next task: 0, 1, 2 .., each handed to one thread. */
static ptrdiff_t tn_take(ptrdiff_t* taken) {
    if (tn_recorder && tn_recorder->alone) {
        const long long now = tn_cpu_nanoseconds();
        tn_end_piece(tn_recorder, now);
        tn_recorder->taken = now;
    }
    return atomic_fetch_add_explicit((_Atomic ptrdiff_t*)taken, 1, memory_order_relaxed);
}

/* A count that only grows: who sees it sees all that the thread wrote before it set the count. */
static inline void tn_set_count(ptrdiff_t* count, ptrdiff_t n) {
    atomic_store_explicit((_Atomic ptrdiff_t*)count, n, memory_order_release);
}

/* Wait until a count is at least n, without sleeping. A thread must have taken what sets it. */
static inline void tn_await_count(ptrdiff_t* count, ptrdiff_t n) {
    for (unsigned look = 1; atomic_load_explicit((_Atomic ptrdiff_t*)count, memory_order_acquire) < n; look++) {
        tn_pause();
        if (look % TN_LOOKS == 0)
            tn_yield();
    }
}

#endif
