"""The number of threads that a kernel's work pays for."""

__all__ = ["seconds", "worth"]

#: Seconds of work that pay for one more thread. Waking a thread costs 1 to 5 microseconds.
GRAIN = 20e-6
#: Rates for estimating seconds of work: one core, data in cache.
FLOPS_PER_SECOND = 1e11
BYTES_PER_SECOND = 2e10


def seconds(flops: int, nbytes: int) -> float:
    """Estimate how long one thread takes for this much work."""
    return flops / FLOPS_PER_SECOND + nbytes / BYTES_PER_SECOND


def worth(seconds: float) -> int:
    """Return how many threads this many seconds of work pay for: at least one."""
    return max(1, int(seconds / GRAIN))
