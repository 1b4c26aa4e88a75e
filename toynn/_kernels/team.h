/* How many threads a parallel region gets: one in a forked child.

   The OpenMP runtime's threads do not come along when a process forks, and the runtime of GCC waits
   for them for ever. So each module notes the fork, whoever makes it. */
#ifndef TOYNN_TEAM_H
#define TOYNN_TEAM_H

#if defined(_OPENMP) && !defined(_WIN32) && defined(__GNUC__)
#include <pthread.h>
static int tn_forked = 0;
static void tn_note_fork(void) { tn_forked = 1; }
__attribute__((constructor)) static void tn_watch_forks(void) {
    pthread_atfork(0, 0, tn_note_fork);
}
static inline int tn_team(int n_threads) { return tn_forked ? 1 : n_threads; }
#else
static inline int tn_team(int n_threads) { return n_threads; }
#endif

#endif
