import numpy as np
from numpy.typing import NDArray

from toynn.signature import Entry

_F32 = NDArray[np.float32]

entries: dict[str, Entry]
__test__: dict[str, str]

def norms(
    r: _F32, squares: _F32, p: _F32, g: _F32, b: _F32, scale: float, n_threads: int = 1
) -> None: ...
def forward(y: _F32, x: _F32, m: _F32, r: _F32, bias: _F32, n_threads: int = 1) -> None: ...
def backward(
    dx: _F32,
    dm: _F32,
    dy: _F32,
    x: _F32,
    m: _F32,
    r: _F32,
    accumulate: bool = False,
    n_threads: int = 1,
) -> None: ...
