"""The precision of matrix products, in PyTorch's words."""

from collections.abc import Sequence

from toynn.errors import ConfigError

__all__ = [
    "ALL_PRECISIONS",
    "PRECISIONS",
    "checked",
    "get_float32_matmul_precision",
    "set_float32_matmul_precision",
]

PRECISIONS = ("highest", "high", "medium")
#: Those of a session, as kernels number them: "int8" is for frozen quantized weights alone.
ALL_PRECISIONS = (*PRECISIONS, "int8")

_chosen = "highest"


def set_float32_matmul_precision(precision: str) -> None:
    """Set the precision of matrix products in sessions that do not choose one themselves.

    - "highest" is as exact as float32. With AMX it takes three bfloat16 parts and six products;
      else it is float32.
    - "high" takes two bfloat16 parts and three products with AMX: each result is off by up to
      2^-14. Without AMX it is float32.
    - "medium" takes bfloat16 with AMX, or with AVX512_BF16 where that is faster: each product of
      two factors is off by up to 2^-7. Elsewhere it is float32.

    A bfloat16 has 8 significant bits. Three of them hold all bits of a float32, two hold 16 bits.
    Products of the parts are added up in float32. Errors are relative, and bounds; the mean is far
    smaller. Intel's CPUs with AVX512_BF16 and without AMX are faster in float32. With AVX512_BF16,
    "medium" rounds the factors of attention's products, too.

    In "medium", products of up to 16 rows with Q4_0, Q8_0, Q4_K or Q6_K weights (experts, too) run
    in 8-bit integers if the CPU has AVX2 and F16C. The rows are rounded to 8 bits: each number is
    off by at most half a 127th of the largest of its block of 32. That covers generation of up to
    16 texts, a token at a time.

    Some products are float32 in every precision: up to 2^21 multiply-adds (2^14 in "medium" with
    AMX), skinny ones (a side of up to 14 rows or 16 columns), softmax, and attention, unless
    "medium" computes over more than 32 rows. With AMX, "highest" and "high" also use float32 for
    sums of fewer than 64 terms, and for blocks that the parts cannot hold: all values below
    1.4e-20, or one value above 8.5e37, infinite or NaN. "highest" does so for M rows and N columns
    with M N below 32 (M + N), too. ``toynn.show_config()`` says what each precision uses here.

    tests/parity/test_precision.py compares ten losses and the first gradients of a GPT-2 (4 layers,
    d_model 128, T 128) with float64. Losses and gradients must be within 1e-6 and 5e-6 of their
    size in "highest", 1e-4 and 1e-4 in "high", 3e-4 and 2e-2 in "medium". A gradient's size is its
    norm.
    """
    global _chosen
    _chosen = checked(precision)


def get_float32_matmul_precision() -> str:
    """Return what set_float32_matmul_precision chose."""
    return _chosen


def checked(precision: str, known: Sequence[str] = PRECISIONS) -> str:
    """Return ``precision``; ConfigError if it is none of those that are ``known``."""
    if precision not in known:
        raise ConfigError(f"matmul precision must be one of {', '.join(known)}; got {precision!r}")
    return precision
