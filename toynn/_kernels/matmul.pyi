import numpy as np
from numpy.typing import NDArray

from toynn.signature import Entry

_F32 = NDArray[np.float32]
_U8 = NDArray[np.uint8]

entries: dict[str, Entry]
__test__: dict[str, str]
GGUF_TYPES: dict[str, int]  # of toynn.dtypes

def multiplies_int8() -> str: ...
def multiplies_pairs() -> bool: ...
def multiplies_tiles() -> bool: ...
def workspace(
    name: str,
    M: int,
    N: int,
    K: int,
    precision: int = 0,
    activation: int = 0,
    type: int = 0,
    n_threads: int = 1,
) -> int: ...
def forward(
    y: _F32,
    pre: _F32 | None,
    x: _F32,
    w: _F32 | _U8,
    b: _F32 | None,
    activation: str = "none",
    type: str = "F32",
    n_threads: int = 1,
    precision: str = "highest",
) -> None: ...
def backward_input(
    dx: _F32,
    dy: _F32,
    w: _F32 | _U8,
    type: str = "F32",
    accumulate: bool = False,
    n_threads: int = 1,
    precision: str = "highest",
) -> None: ...
def backward_weight(
    dw: _F32,
    dy: _F32,
    x: _F32,
    accumulate: bool = False,
    n_threads: int = 1,
    precision: str = "highest",
    kept: int = 0,
) -> None: ...
