"""The types of a tensor's elements: float32, int32, and those in which GGUF files keep weights.

The latter are *blocks*: each packs so many elements of a row into so many bytes, and a row is a
whole number of them. (A block of float16 or bfloat16 has one element.) Kernels that read them
expand them to float32; nothing computes in them.
Source: ggml_type of ggml.h, and ggml-common.h, in ggml; the gguf library has the same table.
"""

from typing import NamedTuple

__all__ = ["BLOCKS", "DTYPES", "DType", "nbytes", "row_fits"]


class DType(NamedTuple):
    """A type: its number in GGML, and the elements and bytes of one block."""

    ggml: int
    elements: int
    nbytes: int


DTYPES: dict[str, DType] = {
    "f32": DType(0, 1, 4),
    "f16": DType(1, 1, 2),
    "q4_0": DType(2, 32, 18),
    "q4_1": DType(3, 32, 20),
    "q5_0": DType(6, 32, 22),
    "q5_1": DType(7, 32, 24),
    "q8_0": DType(8, 32, 34),
    "q4_k": DType(12, 256, 144),
    "q5_k": DType(13, 256, 176),
    "q6_k": DType(14, 256, 210),
    "i32": DType(26, 1, 4),
    "bf16": DType(30, 1, 2),
}

#: The types that only frozen, mapped weights have.
BLOCKS = tuple(name for name in DTYPES if name not in ("f32", "i32"))


def nbytes(dtype: str, size: int) -> int:
    """Return the bytes of so many elements, whole blocks."""
    return size // DTYPES[dtype].elements * DTYPES[dtype].nbytes


def row_fits(dtype: str, shape: tuple[int, ...]) -> bool:
    """Whether a row, the last axis, is a whole number of blocks; a single number is a row."""
    return (shape[-1] if shape else 1) % DTYPES[dtype].elements == 0
