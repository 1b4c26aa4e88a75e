"""How exact matrix products are, in PyTorch's words."""

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
    "medium" rounds the factors to bfloat16, with AMX or AVX512_BF16: each product is off by up to
    2^-7 of its size.

    float32 are, everywhere, products of at most 2^21 multiply-adds, forward ones of up to 3 rows,
    and attention; with AMX also those whose sums have fewer than 64 terms (in "highest" and "high")
    and blocks with numbers out of reach of the parts: all below 1.4e-20, or one above 8.5e37,
    infinite or NaN. ``toynn.show_config()`` says what each precision multiplies in here.

    Measured against float64 on ten steps of a GPT-2 (4 layers, d_model 128, T 128) where medium is
    bfloat16: losses off by up to 3e-7 of their size in "highest", 4e-5 in "medium"; the gradients
    of any weight by up to 7e-7 and 6e-3 of their norm.
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
