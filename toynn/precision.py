"""How exact matrix products are, in PyTorch's words."""

from toynn.errors import ConfigError

__all__ = ["PRECISIONS", "checked", "get_float32_matmul_precision", "set_float32_matmul_precision"]

PRECISIONS = ("highest", "high", "medium")

_chosen = "highest"


def set_float32_matmul_precision(precision: str) -> None:
    """Set the precision of matrix products in sessions that do not choose one themselves.

    "highest" is as exact as float32 multiply-adds; "high" and "medium" allow a faster product of
    bfloat16 parts where the CPU has one. Every ISA level of this version multiplies in float32.
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
