/* A clock that only goes forward, in nanoseconds. */
#ifndef TOYNN_CLOCK_H
#define TOYNN_CLOCK_H

#if defined(_WIN32)
#include <windows.h>
static inline long long tn_nanoseconds(void) {
    LARGE_INTEGER now, rate;
    QueryPerformanceCounter(&now);
    QueryPerformanceFrequency(&rate);
    return (long long)(1e9 * (double)now.QuadPart / (double)rate.QuadPart);
}
#else
#include <time.h>
static inline long long tn_nanoseconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000000000LL + now.tv_nsec;
}
#endif

#endif
