import numpy as np
from numpy.typing import NDArray

from toynn.signature import Entry

_F32 = NDArray[np.float32]

entries: dict[str, Entry]
__test__: dict[str, str]

def forward(
    y: _F32, gate: _F32, up: _F32, alpha: float = 1.0, limit: float = 0.0, n_threads: int = 1
) -> None: ...
def backward(
    dgate: _F32,
    dup: _F32,
    dy: _F32,
    gate: _F32,
    up: _F32,
    alpha: float = 1.0,
    limit: float = 0.0,
    n_threads: int = 1,
) -> None: ...
def halves_forward(y: _F32, x: _F32, n_threads: int = 1) -> None: ...
def halves_backward(dx: _F32, dy: _F32, x: _F32, n_threads: int = 1) -> None: ...
