"""Critical sections: no signal handler interrupts them, and with a lock one thread at a time is in.

    with Section():                  in the main thread, signals wait until the section ends
    with Section(lock, refusal):     the section also holds the lock; with ``signals`` it does only
                                     that: handlers run, and may raise
    @uninterrupted                   each call of the function is a section
    @exclusive                       each call of the method is self.exclusively(call)

CPython runs signal handlers in the main thread, between two instructions of Python. A handler may
raise: that of Ctrl-C raises KeyboardInterrupt. So a call may end between any two instructions, with
a lock held or half of its changes made. A section is entered and left in C, where CPython runs no
handler. So the lock is never held while signals are handled.

Sections nest. Sections of the same lock nest if it is an RLock. When the outermost section ends,
its changes are made and its lock is free. Only then do the handlers of signals that waited run;
they may raise. Do not yield inside a section.
"""

import threading
from functools import wraps

from _signal import getsignal  # of signal, which makes an enum of each answer
from cpython.exc cimport PyErr_CheckSignals

from toynn.errors import BackendError, LifecycleError
from toynn.system import platform

cdef extern from "pythread.h" nogil:
    unsigned long PyThread_get_thread_ident()

cdef extern from "critical.h" nogil:
    const int[] tn_signals
    const int TN_SIGNALS
    void tn_hold_signal(int i) noexcept
    void tn_forget_signals() noexcept
    void tn_restore_handlers() noexcept
    void tn_release_signals() noexcept
    int tn_stopping
    void tn_stop_by_signal(bint on, const char* text, size_t size) noexcept

cdef unsigned long _main = threading.main_thread().ident  # the only thread that runs handlers
cdef int _depth = 0  # sections that the main thread is in
cdef bytes _text = None  # what the first signal that waits writes
cdef tuple _numbers = tuple([tn_signals[i] for i in range(TN_SIGNALS)])


cdef int _enter() except -1:
    """Let signals wait. Handle the signals that came before; their handlers may raise."""
    global _depth
    cdef int i
    if PyThread_get_thread_ident() != _main:
        return 0
    _depth += 1  # first: a handler may enter a section
    if _depth == 1:
        for i in range(TN_SIGNALS):
            if callable(getsignal(_numbers[i])):  # a handler of Python's
                tn_hold_signal(i)
        try:
            PyErr_CheckSignals()
        except BaseException:
            _depth -= 1
            tn_release_signals()
            raise
    return 0


cdef int _leave() except -1:
    """At the end of the outermost section, handle the signals that waited."""
    global _depth
    if PyThread_get_thread_ident() != _main:
        return 0
    _depth -= 1
    if _depth == 0:
        tn_release_signals()
        PyErr_CheckSignals()
    return 0


def _after_fork():
    """Reset the state in a forked child. Its main thread is the thread that forked."""
    global _main, _depth
    tn_forget_signals()
    if PyThread_get_thread_ident() != _main:
        _main = PyThread_get_thread_ident()
        if _depth:
            _depth = 0
            tn_restore_handlers()


platform.in_child(_after_fork)


cdef class Section:
    """A critical section, for a with statement; with a lock, no other thread can be in it.

    If another thread holds the lock, entering raises LifecycleError with the text ``refusal``. If
    the section ends with a BackendError, ``failed`` is called while the lock is still held.
    """

    cdef object _lock, _refusal, _failed
    cdef bint _signals
    cdef int _entered  # and not yet left

    def __init__(self, lock=None, refusal=None, failed=None, signals=False):
        self._lock, self._refusal, self._failed = lock, refusal, failed
        self._signals = signals

    def __reduce__(self):
        raise TypeError("a critical section cannot be pickled")

    def __enter__(self):
        if not self._signals:
            _enter()
        if self._lock is not None and not self._lock.acquire(False):
            if not self._signals:
                _leave()
            raise LifecycleError(self._refusal)
        self._entered += 1

    def __exit__(self, kind, error, traceback):
        self._entered -= 1
        try:
            if self._failed is not None and kind is not None and issubclass(kind, BackendError):
                self._failed()
        finally:
            if self._lock is not None:
                self._lock.release()
            if not self._signals:
                _leave()

    def __del__(self):
        # Python 3.14 handles signals between __enter__ and the body, too. If a handler raises
        # there, nobody calls __exit__.
        while self._entered > 0:
            self.__exit__(None, None, None)


def stop_by_signal(bytes text):
    """Let the first SIGINT, SIGTERM or SIGHUP that must wait write a text to stderr at once.

    A second SIGINT or SIGTERM in the same section ends the process. None switches both off.
    Returns the text that was set before, so that the caller can restore it.
    """
    global _text
    before, _text = _text, text
    tn_stop_by_signal(text is not None, text or b"", len(text or b""))
    return before


def stopping():
    """Return whether a signal has written the text of stop_by_signal()."""
    return bool(tn_stopping)


def uninterrupted(function):
    """Make each call of a function a critical section."""
    @wraps(function)
    def call(*arguments, **named):
        with Section():
            return function(*arguments, **named)
    return call


def exclusive(method):
    """Make each call of a method the section that ``self.exclusively("method()")`` returns."""
    cdef str name = f"{method.__name__}()"

    @wraps(method)
    def call(self, *arguments, **named):
        with self.exclusively(name):
            return method(self, *arguments, **named)
    return call
