"""The precision of matrix products, in PyTorch's words."""

from collections.abc import Sequence

from toynn.errors import ConfigError

PRECISIONS = ("highest", "high", "medium")
#: Those of a session, as kernels number them: "int8" is for frozen quantized weights alone.
ALL_PRECISIONS = (*PRECISIONS, "int8")
#: The same, then with each row multiplied as if alone: the numbers are those of kernels.
NUMBERED = (*ALL_PRECISIONS, *(f"{precision} by row" for precision in ALL_PRECISIONS))

_chosen = "highest"


def set_float32_matmul_precision(precision: str) -> None:
    """Set the precision of matrix products in sessions that do not choose one themselves.

    - "highest" is as exact as float32. With AMX it uses three bfloat16 parts and six products.
      Otherwise it is float32.

    - "high" with AMX uses two bfloat16 parts and three products. Each result is off by up to 2^-14.
      Without AMX it is float32.

    - "medium" uses bfloat16 with AMX, or with AVX512_BF16 where that is faster. Each product of two
      factors is off by up to 2^-7. Elsewhere it is float32.

    A bfloat16 has 8 significant bits. Three of them hold all bits of a float32, two hold 16 bits.
    Products of the parts are added up in float32. The errors are relative upper bounds; the mean
    error is far smaller. Intel's CPUs with AVX512_BF16 and without AMX are faster in float32. With
    AVX512_BF16, "medium" rounds the factors of attention's products too.

    In "medium", products of up to 16 rows with Q4_0, Q8_0, Q4_K or Q6_K weights (also of experts)
    run in 8-bit integers. The CPU needs AVX2 and F16C. The rows are rounded to 8 bits: each number
    is off by at most half a 127th of the largest of its block of 32. Generation, a token at a time,
    does so for any number of texts.

    Some operations are float32 in every precision:

    - products of up to 2^21 multiply-adds (2^16 in "medium" in bfloat16, 2^14 with AMX);
    - skinny products (a side of up to 14 rows or 16 columns);
    - softmax;
    - attention, unless "medium" computes over more than 32 rows.

    With AMX, "highest" and "high" also use float32 for sums of fewer than 64 terms. They use it for
    blocks that the parts cannot hold: all values below 1.4e-20, or one value above 8.5e37, infinite
    or NaN. "highest" uses it too for M rows and N columns with M N below 32 (M + N).
    ``toynn.show_config()`` prints what each precision uses on this machine.

    tests/parity/test_precision.py compares ten losses and the first gradients of a GPT-2 (4 layers,
    d_model 128, T 128) with float64. Losses and gradients must be within 1e-6 and 5e-6 of their
    size in "highest", 1e-4 and 1e-4 in "high", 3e-4 and 2e-2 in "medium". A gradient's size is its
    norm.
    """
    global _chosen
    _chosen = checked(precision)


def get_float32_matmul_precision() -> str:
    """Return the precision that set_float32_matmul_precision has set."""
    return _chosen


def checked(precision: str, known: Sequence[str] = PRECISIONS) -> str:
    """Return ``precision``. Raises ConfigError unless it is one of ``known``."""
    if precision not in known:
        raise ConfigError(f"matmul precision must be one of {', '.join(known)}; got {precision!r}")
    return precision
