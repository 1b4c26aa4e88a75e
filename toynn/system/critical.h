/* Signals that wait: a signal that is held is noted, and its handler is not called.

   Some signals cannot wait for the end of a long section: the first request to stop is answered at
   once, and the second one ends the process.

   The caller holds and releases from one thread; a signal may arrive in any thread. */
#ifndef TOYNN_CRITICAL_H
#define TOYNN_CRITICAL_H

#include <errno.h>
#include <string.h>

#include "platform.h"

/* The signals whose handlers raise exceptions in Python programs. */
static const int tn_signals[] = TN_SIGNAL_LIST;

enum { TN_SIGNALS = sizeof(tn_signals) / sizeof(tn_signals[0]) };

static tn_action tn_before[TN_SIGNALS];
static int tn_held[TN_SIGNALS];
static volatile sig_atomic_t tn_came[TN_SIGNALS];

/* Whether the first signal writes a text to stderr and a second one ends the process; whether the
   first one came. */
static volatile sig_atomic_t tn_stops, tn_stopping;
static long long tn_first; /* when, in nanoseconds */
static char tn_text[200];
static size_t tn_text_size;

/* Let the first signal that asks to stop write a text, and the second end the process. */
static inline void tn_stop_by_signal(int on, const char* text, size_t size) {
    tn_stops = 0;
    tn_stopping = 0;
    tn_text_size = size < sizeof(tn_text) ? size : sizeof(tn_text);
    memcpy(tn_text, text, tn_text_size);
    tn_stops = on;
}

/* A second SIGHUP, or Ctrl-Break, does not count as a second request: a shell that ends may repeat
   its terminal's. Nor does a signal within half a second: timeout(1) and wrappers send one to a
   process and to its group. */
static int tn_is_repeated(void) {
    return tn_nanoseconds() - tn_first < 500000000LL;
}

static void tn_stop(int number) {
    const int before = errno;
    if (!tn_stopping) {
        tn_stopping = 1;
        tn_first = tn_nanoseconds();
        tn_write_error(tn_text, tn_text_size);
    } else if (number != TN_HANGUP && !tn_is_repeated()) {
        signal(number, SIG_DFL);
        raise(number);
    }
    errno = before;
}

static void tn_note(int number) {
    tn_stay(number, tn_note);
    for (int i = 0; i < TN_SIGNALS; i++)
        if (tn_signals[i] == number)
            tn_came[i] = 1;
    if (tn_stops && (number == SIGINT || number == SIGTERM || number == TN_HANGUP))
        tn_stop(number);
}

/* Note a signal from now on, by its index. */
static inline void tn_hold_signal(int i) {
    const tn_action note = tn_handler(tn_note);
    tn_held[i] = tn_set_action(tn_signals[i], &note, &tn_before[i]);
}

/* Restore the handlers, except those that other code has replaced in the meantime. */
static inline void tn_restore_handlers(void) {
    tn_action now;
    for (int i = 0; i < TN_SIGNALS; i++) {
        if (tn_held[i] && tn_set_action(tn_signals[i], &tn_before[i], &now) &&
            now.sa_handler != tn_note)
            tn_set_action(tn_signals[i], &now, NULL);
        tn_held[i] = 0;
    }
}

/* Forget the signals that were noted: in a forked child, they were its parent's. */
static inline void tn_forget_signals(void) {
    for (int i = 0; i < TN_SIGNALS; i++)
        tn_came[i] = 0;
}

/* Restore the handlers, and raise the signals that were noted. */
static inline void tn_release_signals(void) {
    tn_restore_handlers();
    for (int i = 0; i < TN_SIGNALS; i++)
        if (tn_came[i]) {
            tn_came[i] = 0;
            raise(tn_signals[i]);
        }
}

#endif
