"""The number of threads that a kernel's work is worth."""

__all__ = ["seconds", "worth"]

#: Seconds of work for which one more thread pays. Waking one costs 1 to 5 microseconds.
GRAIN = 20e-6
#: Rates from which that time is estimated: one core, data in cache.
FLOPS_PER_SECOND = 1e11
BYTES_PER_SECOND = 2e10


def seconds(flops: int, nbytes: int) -> float:
    """Return about how long one thread takes for this much work."""
    return flops / FLOPS_PER_SECOND + nbytes / BYTES_PER_SECOND


def worth(seconds: float) -> int:
    """Return how many threads work of so many seconds is worth, at least one."""
    return max(1, int(seconds / GRAIN))
