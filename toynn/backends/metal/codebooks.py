"""The codebooks of the IQ types as constants of the shaders, from those of the CPU."""

from functools import cache

from toynn._kernels import codebooks

__all__ = ["text"]


@cache
def text() -> str:
    """Return the declarations: bytes, row after row, by the names of their types."""
    return "".join(
        f"constant constexpr uchar {name}[{len(rows)}] = {{{', '.join(map(str, rows))}}};\n"
        for name, rows in codebooks.rows().items()
    )
