"""How long work takes on one core, estimated; and how many threads it pays for."""

from collections.abc import Mapping

#: Seconds of work that pay for one more thread. Waking a thread costs 1 to 5 microseconds.
GRAIN = 20e-6
#: Rates for estimating seconds of work: one core, data in cache.
FLOPS_PER_SECOND = 1e11
BYTES_PER_SECOND = 2e10
WEIGHTS_PER_SECOND = 5e9  # dequantized to float32: 3 to 16 a nanosecond, by type
MEDIUM = 2  # in toynn.numerics.precision.NUMBERED; 4 more is the same by row


def seconds(flops: int, nbytes: int, weights: int = 0) -> float:
    """Estimate how long one thread takes for this much work; ``weights`` are dequantized."""
    moving = nbytes / BYTES_PER_SECOND + weights / WEIGHTS_PER_SECOND
    return flops / FLOPS_PER_SECOND + moving


def dequantized(sizes: Mapping[str, int]) -> int:
    """Count the weights that a launch with these sizes dequantizes, if it is a product.

    From medium on, products of few rows multiply most types in 8 bits. Of experts' matrices, a row
    uses one.
    """
    if not sizes.get("type") or not {"M", "N", "K"} <= sizes.keys():
        return 0
    if sizes["precision"] % 4 >= MEDIUM:
        return 0
    return min(sizes.get("E", 1), sizes["M"]) * sizes["N"] * sizes["K"]


def worth(seconds: float) -> int:
    """Return how many threads this many seconds of work pay for: at least one."""
    return max(1, int(seconds / GRAIN))
