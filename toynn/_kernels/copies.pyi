import numpy as np
from numpy.typing import NDArray

from toynn.signature import Entry

_F32 = NDArray[np.float32]
_U8 = NDArray[np.uint8]

ENTRIES: tuple[str, ...]
MOST: int
entries: dict[str, Entry]
__test__: dict[str, str]
GGUF_TYPES: dict[str, int]  # of toynn.dtypes

def form(name: str, M: int, N: int, K: int, precision: int, type: int = 0) -> int | None: ...
def nbytes(name: str, form: int, N: int, K: int) -> int: ...
def pack(
    panels: _F32,
    w: _F32 | _U8,
    name: str,
    form: int,
    K: int,
    type: str = "F32",
    n_threads: int = 1,
) -> None: ...
