cimport cython


@cython.final
cdef class ThreadCount:
    cdef readonly int full     # threads that there may be
    cdef readonly int size     # threads to use now
    cdef int _settled          # the size that was best so far; if not ``size``, that is on trial
    cdef bint _up, _awake      # of the trial: more threads, not fewer; its first window is over
    cdef int _depth            # of the last trial with fewer: size >> 1, or size >> 2
    cdef double _usual, _took  # nanoseconds in this window
    cdef double _slow          # took / usual at the settled size, in the last few windows
    cdef double _waited        # nanoseconds since the last trial, those of usual work by RARELY, of
    cdef double _pause         # those before the next one

    cpdef void note(self, double usual, double took) noexcept nogil
    cdef void _judge(self) noexcept nogil
    cdef void _try_another(self) noexcept nogil
    cpdef bint on_trial(self) noexcept nogil
