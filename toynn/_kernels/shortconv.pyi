import numpy as np
from numpy.typing import NDArray

from toynn.signature import Entry

_F32 = NDArray[np.float32]
_I32 = NDArray[np.int32]

entries: dict[str, Entry]
__test__: dict[str, str]

def forward(
    y: _F32, x: _F32, w: _F32, first: _I32 | None = None, batch: int = 1, n_threads: int = 1
) -> None: ...
def backward(
    dx: _F32,
    dw: _F32,
    dy: _F32,
    x: _F32,
    w: _F32,
    first: _I32 | None = None,
    batch: int = 1,
    accumulate: bool = False,
    n_threads: int = 1,
) -> None: ...
def cached(y: _F32, ring: _F32, x: _F32, w: _F32, past: _I32, n_threads: int = 1) -> None: ...
