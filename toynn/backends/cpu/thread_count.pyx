"""How many threads to use while other processes want the cores too.

A barrier follows every kernel. A thread that has lost its core to another process keeps the others
waiting, and the waiting threads hold the cores that it needs. Beside one other busy process, two
threads on two cores may take fifty times as long as one. So a program tries fewer threads, later
more, and keeps the number that is faster by the clock. No result depends on it.
"""
cimport cython

cdef enum:
    WINDOW = 20_000_000      # nanoseconds of work that judge a size: several time slices
    SHORTEST = 100_000_000   # nanoseconds of slow work before the next trial
    RARELY = 16              # times as long a wait if all threads together are as fast as usual

cdef double LONGEST = 3e9  # the wait doubles after each useless trial, up to this
cdef double USUAL = 1.25  # work that takes up to this times as long as usual counts as usual
cdef double BETTER = 0.95  # a size is kept if it takes less than this share of the time


@cython.auto_pickle(False)
cdef class ThreadCount:
    """The number of threads of a program: at most ``full``, now ``size``."""

    def __init__(self, int full):
        self.full = self.size = self._settled = full
        self._pause = SHORTEST
        self._slow = 1
        self._depth = 2

    cpdef void note(self, double usual, double took) noexcept nogil:
        """Note the nanoseconds that a call took, and how many are usual. May change ``size``.

        ``usual`` compares sizes with each other: do not change it while a trial is on.
        """
        self._usual += usual
        self._took += took
        if self._took >= WINDOW:
            self._judge()
            self._usual = self._took = 0

    cdef void _judge(self) noexcept nogil:
        cdef double slow = self._took / self._usual
        cdef bint well = self.size == self.full and slow < USUAL
        if not self.on_trial():
            self._slow += (slow - self._slow) / 4  # one window may be a burst
            self._waited += self._took / RARELY if well else self._took
            if self._waited >= self._pause:
                self._try_another()
        elif not self._awake:  # threads woke up in this window and had to find cores
            self._awake = True
        elif slow < BETTER * self._slow:
            self._settled = self.size
            self._slow = slow
            self._waited = 0
            self._pause = SHORTEST
        else:
            self.size = self._settled
            self._waited = 0
            self._pause = min(2 * self._pause, LONGEST)

    cdef void _try_another(self) noexcept nogil:
        """Try a quarter more threads, or half or a quarter as many, in turn."""
        self._up = self.size == 1 or (self.size < self.full and not self._up)
        if self._up:
            self.size = min(self.size + max(1, self.size // 4), self.full)
        else:
            self._depth = 3 - self._depth
            self.size = max(1, self.size >> self._depth)
        self._awake = False

    cpdef bint on_trial(self) noexcept nogil:
        """Whether a size other than the best so far is being tried."""
        return self.size != self._settled
