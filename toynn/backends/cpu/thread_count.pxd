cimport cython


@cython.final
cdef class ThreadCount:
    cdef readonly int full     # the most threads
    cdef readonly int size     # threads to use now
    cdef int _settled          # the best size so far; if it is not ``size``, ``size`` is on trial
    cdef bint _up, _awake      # the trial has more threads, not fewer; its first window is over
    cdef int _depth            # the last trial with fewer threads had size >> _depth: 1 or 2
    cdef double _usual, _took  # nanoseconds in this window
    cdef double _slow          # took / usual at the settled size, averaged over a few windows
    cdef double _waited        # nanoseconds since the last trial; usual work counts 1 / RARELY
    cdef double _pause         # nanoseconds to wait before the next trial

    cpdef void note(self, double usual, double took) noexcept nogil
    cdef void _judge(self) noexcept nogil
    cdef void _try_another(self) noexcept nogil
    cpdef bint on_trial(self) noexcept nogil
