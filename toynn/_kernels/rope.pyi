import numpy as np
from numpy.typing import NDArray

from toynn.signature import Entry

_F32 = NDArray[np.float32]
_I32 = NDArray[np.int32]

entries: dict[str, Entry]
__test__: dict[str, str]

def forward(
    y: _F32,
    x: _F32,
    positions: _I32,
    inverse_frequency: _F32,
    interleaved: bool = False,
    magnitude: float = 1.0,
    heads: int | None = None,
    n_threads: int = 1,
) -> None: ...
def backward(
    dx: _F32,
    dy: _F32,
    positions: _I32,
    inverse_frequency: _F32,
    interleaved: bool = False,
    magnitude: float = 1.0,
    heads: int | None = None,
    n_threads: int = 1,
) -> None: ...
