/* What Windows calls otherwise than all other systems: clock, threads, locks, signals. platform.py
   has the rest. All other C code calls these functions. */
#ifndef TOYNN_PLATFORM_H
#define TOYNN_PLATFORM_H

#include <signal.h>
#include <stdbool.h>
#include <stddef.h>

#ifdef _WIN32
#include <io.h>
#include <windows.h>

/* The signals whose handlers raise exceptions in Python programs: Ctrl-C, requests to end, Ctrl-Break
   and a console that closes. */
#define TN_SIGNAL_LIST {SIGINT, SIGTERM, SIGBREAK}
#define TN_HANGUP SIGBREAK

typedef struct {
    void (*sa_handler)(int);
} tn_action;

/* Set what a signal does, and say what it did; return whether that worked. */
static inline bool tn_set_action(int number, const tn_action* now, tn_action* before) {
    void (*old)(int) = signal(number, now->sa_handler);
    if (before)
        before->sa_handler = old;
    return old != SIG_ERR;
}
/* A handler that stays, though signals may arrive in it. */
static inline tn_action tn_handler(void (*handler)(int)) { return (tn_action){handler}; }
/* In a handler: the system has put the default in its place. */
static inline void tn_stay(int number, void (*handler)(int)) { signal(number, handler); }
static inline void tn_write_error(const char* text, size_t size) {
    if (_write(2, text, (unsigned)size) < 0) {} /* the console may be gone */
}

/* A clock that only goes forward, in nanoseconds. */
static inline long long tn_nanoseconds(void) {
    LARGE_INTEGER now, rate;
    QueryPerformanceCounter(&now);
    QueryPerformanceFrequency(&rate);
    return (long long)(1e9 * (double)now.QuadPart / (double)rate.QuadPart);
}

/* Windows has no clock of a thread's CPU time that is finer than 16 milliseconds. */
static inline long long tn_cpu_nanoseconds(void) { return tn_nanoseconds(); }

typedef SRWLOCK tn_mutex;
typedef CONDITION_VARIABLE tn_condition;
#define TN_MUTEX SRWLOCK_INIT
#define TN_ENTRY static DWORD WINAPI
static inline void tn_lock(tn_mutex* mutex) { AcquireSRWLockExclusive(mutex); }
static inline void tn_unlock(tn_mutex* mutex) { ReleaseSRWLockExclusive(mutex); }
static inline void tn_sleep(tn_condition* it, tn_mutex* mutex) {
    SleepConditionVariableSRW(it, mutex, INFINITE, 0);
}
static inline void tn_wake(tn_condition* it) { WakeConditionVariable(it); }
static inline void tn_yield(void) { SwitchToThread(); }
static inline void tn_initialize(tn_mutex* mutex, tn_condition* it) {
    InitializeSRWLock(mutex);
    InitializeConditionVariable(it);
}
static inline bool tn_start_thread(LPTHREAD_START_ROUTINE run, void* argument, size_t stack) {
    HANDLE thread =
        CreateThread(NULL, stack, run, argument, STACK_SIZE_PARAM_IS_A_RESERVATION, NULL);
    return thread && CloseHandle(thread);
}
static inline void tn_name_thread(int number) { (void)number; }
static inline void tn_watch_forks(void (*in_child)(void)) { (void)in_child; }

#else
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <time.h>
#include <unistd.h>

/* Ctrl-C, requests to end, timeouts, what programs agree on. */
#define TN_SIGNAL_LIST {SIGINT, SIGTERM, SIGHUP, SIGALRM, SIGUSR1, SIGUSR2}
#define TN_HANGUP SIGHUP

typedef struct sigaction tn_action;

static inline bool tn_set_action(int number, const tn_action* now, tn_action* before) {
    return !sigaction(number, now, before);
}
static inline tn_action tn_handler(void (*handler)(int)) {
    tn_action action = {0};
    action.sa_handler = handler;
    action.sa_flags = SA_ONSTACK | SA_RESTART;
    return action;
}
static inline void tn_stay(int number, void (*handler)(int)) { (void)number, (void)handler; }
static inline void tn_write_error(const char* text, size_t size) {
    if (write(2, text, size) < 0) {} /* the terminal may be gone */
}

static inline long long tn_nanoseconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000000000LL + now.tv_nsec;
}

/* The CPU time of this thread, in nanoseconds: other processes do not count. */
static inline long long tn_cpu_nanoseconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return now.tv_sec * 1000000000LL + now.tv_nsec;
}

typedef pthread_mutex_t tn_mutex;
typedef pthread_cond_t tn_condition;
#define TN_MUTEX PTHREAD_MUTEX_INITIALIZER
#define TN_ENTRY static void*
static inline void tn_lock(tn_mutex* mutex) { pthread_mutex_lock(mutex); }
static inline void tn_unlock(tn_mutex* mutex) { pthread_mutex_unlock(mutex); }
static inline void tn_sleep(tn_condition* it, tn_mutex* mutex) { pthread_cond_wait(it, mutex); }
static inline void tn_wake(tn_condition* it) { pthread_cond_signal(it); }
static inline void tn_yield(void) { sched_yield(); }
static inline void tn_initialize(tn_mutex* mutex, tn_condition* it) {
    pthread_mutex_init(mutex, NULL);
    pthread_cond_init(it, NULL);
}
static inline bool tn_start_thread(void* (*run)(void*), void* argument, size_t stack) {
    pthread_attr_t attributes;
    pthread_t thread;
    pthread_attr_init(&attributes);
    pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
    pthread_attr_setstacksize(&attributes, stack);
    /* Signals are the program's own threads' to handle; a fault is the thread's that it is in. */
    const int faults[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL};
    sigset_t blocked, before;
    sigfillset(&blocked);
    for (size_t k = 0; k < sizeof faults / sizeof *faults; k++)
        sigdelset(&blocked, faults[k]);
    pthread_sigmask(SIG_SETMASK, &blocked, &before); /* a new thread has its starter's */
    const bool started = pthread_create(&thread, &attributes, run, argument) == 0;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    pthread_attr_destroy(&attributes);
    return started;
}
#if defined(__linux__) || defined(__APPLE__)
#ifdef __linux__
int pthread_setname_np(pthread_t, const char*); /* declared for _GNU_SOURCE only */
#define pthread_setname_np(name) pthread_setname_np(pthread_self(), name)
#endif
static inline void tn_name_thread(int number) {
    char name[32]; /* 15 letters, at most, are used */
    snprintf(name, sizeof name, "toynn-%d", number);
    pthread_setname_np(name);
}
#else
static inline void tn_name_thread(int number) { (void)number; }
#endif
static inline void tn_watch_forks(void (*in_child)(void)) { pthread_atfork(NULL, NULL, in_child); }
#endif

#endif
