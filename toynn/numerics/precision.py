"""The precision of matrix products, in PyTorch's words."""

from toynn.errors import ConfigError

__all__ = ["PRECISIONS", "checked", "get_float32_matmul_precision", "set_float32_matmul_precision"]

PRECISIONS = ("highest", "high", "medium")

_chosen = "highest"


def set_float32_matmul_precision(precision: str) -> None:
    """Set the precision of matrix products in sessions that do not choose one themselves.

    "highest" is as exact as multiplying and adding in float32, and so is "high", but for CPUs with
    AMX: there the factors of a linear layer's products, forward and backward, are split into parts
    of bfloat16 (8 significant bits, ties to even), whose products are added up in float32.
    "highest" takes three parts, all bits of each factor, and six products; "high" two parts, 16
    bits, and three products, each result off by up to 2^-14 of its size, in the mean by far less.
    "medium" rounds the factors to bfloat16, with AMX or AVX512_BF16, and those of attention's
    products where there is AVX512_BF16: each product is off by up to 2^-7 of its size. Where that
    would be slower than float32, as on Intel's CPUs without AMX, it does not count.

    In "medium", products of up to 16 rows by blocks of Q4_0, Q8_0, Q4_K or Q6_K, those of experts
    too, multiply the codes as they are, where there is AVX2 (with F16C): the rows are rounded to 8
    bits, by half a 127th of the largest of 32 numbers at most. That is generation, a token at a
    time, of up to 16 texts.

    float32 are, everywhere, products of at most 2^21 multiply-adds (with AMX, in "medium", 2^14),
    skinny ones (one side has up to 14 rows or 16 columns), softmax, and attention but for medium
    over more than 32 rows; with AMX, in "highest" and "high", also those whose sums have fewer than
    64 terms and blocks with numbers out of reach of the parts: all below 1.4e-20, or one above
    8.5e37, infinite or NaN; and in "highest" those of M rows and N columns with M N below 32 (M +
    N). ``toynn.show_config()`` says what each precision multiplies in here.

    Against float64, ten losses and the first gradients of a GPT-2 (4 layers, d_model 128, T 128)
    are tested to be within 1e-6 and 5e-6 of their size in "highest", 1e-4 and 1e-4 in "high", 3e-4
    and 2e-2 in "medium" (tests/parity/test_precision.py); a gradient's size is its norm.
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
