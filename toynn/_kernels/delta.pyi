import numpy as np
from numpy.typing import NDArray

from toynn.signature import Entry

_F32 = NDArray[np.float32]
_I32 = NDArray[np.int32]

entries: dict[str, Entry]
__test__: dict[str, str]

def workspace(
    name: str,
    B: int,
    T: int,
    K: int,
    V: int,
    D: int,
    E: int,
    X: int,
    S: int = 0,
    L: int = 0,
    n_threads: int = 1,
) -> int: ...
def forward(
    y: _F32,
    states: _F32,
    x: _F32,
    g: _F32,
    c: _F32,
    first: _I32 | None = None,
    length: int = 32,
    n_threads: int = 1,
) -> None: ...
def backward(
    dx: _F32,
    dg: _F32,
    dc: _F32,
    dy: _F32,
    x: _F32,
    g: _F32,
    c: _F32,
    states: _F32,
    first: _I32 | None = None,
    length: int = 32,
    n_threads: int = 1,
) -> None: ...
def cached(
    y: _F32,
    state: _F32,
    x: _F32,
    g: _F32,
    c: _F32,
    past: _I32,
    count: _I32,
    n_threads: int = 1,
) -> None: ...
