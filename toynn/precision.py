"""How exact matrix products are, in PyTorch's words."""

from toynn.errors import ConfigError

__all__ = ["PRECISIONS", "checked", "get_float32_matmul_precision", "set_float32_matmul_precision"]

PRECISIONS = ("highest", "high", "medium")

_chosen = "highest"


def set_float32_matmul_precision(precision: str) -> None:
    """Set the precision of matrix products in sessions that do not choose one themselves.

    "highest" multiplies and adds in float32; in this version "high" does too. "medium" rounds both
    factors of a linear layer's products and of attention's, forward and backward, to bfloat16 (8
    significant bits, ties to even) and adds up in float32, where the CPU has AVX512_BF16 and the
    ISA level is avx512: up to twice as fast, each product off by up to 2^-8 of its size. Medium is
    float32 elsewhere; and everywhere in softmax, in a linear layer's products of at most 2^21
    multiply-adds and forward ones of up to 3 rows, in attention over at most 32 rows a sequence or
    over a cache. ``toynn.show_config()`` says what medium multiplies in here.
    """
    global _chosen
    _chosen = checked(precision)


def get_float32_matmul_precision() -> str:
    """Return what set_float32_matmul_precision chose."""
    return _chosen


def checked(precision: str) -> str:
    """Return ``precision``; ConfigError if there is none of that name."""
    if precision not in PRECISIONS:
        raise ConfigError(
            f"matmul precision must be one of {', '.join(PRECISIONS)}; got {precision!r}"
        )
    return precision
