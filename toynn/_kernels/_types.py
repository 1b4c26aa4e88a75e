"""The types of GGUF files that toynn reads, by the names that those have: of toynn.dtypes."""

from toynn.dtypes import BLOCKS as PACKED
from toynn.dtypes import DTYPES

__all__ = ["BLOCKS", "TYPES"]

_KNOWN = {name.upper(): DTYPES[name] for name in ("f32", *PACKED)}

#: The number of each type in a GGUF file.
TYPES: dict[str, int] = {name: dtype.ggml for name, dtype in _KNOWN.items()}

#: Elements of a block of each type, and its bytes. Rows are whole numbers of blocks.
BLOCKS: dict[str, tuple[int, int]] = {
    name: (dtype.elements, dtype.nbytes) for name, dtype in _KNOWN.items()
}
