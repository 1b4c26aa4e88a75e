"""The types of a tensor's elements: float32, int32, and the quantized types of GGUF files.

A *block* of a quantized type packs some elements of a row into some bytes. A row is a whole number
of blocks. (A block of float16 or bfloat16 has one element.) Kernels dequantize weights to float32;
nothing computes in a quantized type. In toynn a type has its name in DTYPES, "q4_k"; in files, and
in the kernels' Python calls, it has GGUF's: "Q4_K".
Source: ggml_type of ggml.h, and ggml-common.h, in ggml; the gguf library has the same table.
"""

from typing import NamedTuple


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
    "q2_k": DType(10, 256, 84),
    "q3_k": DType(11, 256, 110),
    "q4_k": DType(12, 256, 144),
    "q5_k": DType(13, 256, 176),
    "q6_k": DType(14, 256, 210),
    "iq2_xxs": DType(16, 256, 66),
    "iq2_xs": DType(17, 256, 74),
    "iq3_xxs": DType(18, 256, 98),
    "iq1_s": DType(19, 256, 50),
    "iq4_nl": DType(20, 32, 18),
    "iq3_s": DType(21, 256, 110),
    "iq2_s": DType(22, 256, 82),
    "iq4_xs": DType(23, 256, 136),
    "i32": DType(26, 1, 4),
    "iq1_m": DType(29, 256, 56),
    "bf16": DType(30, 1, 2),
    "tq1_0": DType(34, 256, 54),
    "tq2_0": DType(35, 256, 66),
    "mxfp4": DType(39, 32, 17),
    "nvfp4": DType(40, 64, 36),
}

#: The types that only frozen weights have.
QUANTIZED = tuple(name for name in DTYPES if name not in ("f32", "i32"))

#: The name of each type by its number.
NAMES: dict[int, str] = {dtype.ggml: name for name, dtype in DTYPES.items()}

_KNOWN = {name.upper(): DTYPES[name] for name in ("f32", *QUANTIZED)}

#: The number of each type that toynn reads, by GGUF's name.
GGUF_TYPES: dict[str, int] = {name: dtype.ggml for name, dtype in _KNOWN.items()}

#: The elements and bytes of a block of each type, by GGUF's name.
GGUF_BLOCKS: dict[str, tuple[int, int]] = {
    name: (dtype.elements, dtype.nbytes) for name, dtype in _KNOWN.items()
}


def nbytes(dtype: str, size: int) -> int:
    """Return the bytes of ``size`` elements in whole blocks."""
    return size // DTYPES[dtype].elements * DTYPES[dtype].nbytes


def row_fits(dtype: str, shape: tuple[int, ...]) -> bool:
    """Return whether a row (the last axis) is a whole number of blocks; a scalar is a row."""
    return (shape[-1] if shape else 1) % DTYPES[dtype].elements == 0
