"""The codebooks of the IQ types as constants of the shaders, made from the CPU's codebooks."""

from functools import cache

from toynn._kernels.base import codebooks


@cache
def text() -> str:
    """Return the declarations: arrays of bytes, row after row, named after their types."""
    return "".join(
        f"constant constexpr uchar {name}[{len(rows)}] = {{{', '.join(map(str, rows))}}};\n"
        for name, rows in codebooks.rows().items()
    )
