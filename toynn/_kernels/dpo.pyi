import numpy as np
from numpy.typing import NDArray

from toynn.signature import Entry

_F32 = NDArray[np.float32]
_I32 = NDArray[np.int32]

entries: dict[str, Entry]
__test__: dict[str, str]

def forward(
    loss: _F32,
    sums: _F32,
    reference: _F32,
    count: _I32,
    beta: float,
    smoothing: float,
    n_threads: int = 1,
) -> None: ...
def backward(
    dsums: _F32,
    dloss: _F32,
    sums: _F32,
    reference: _F32,
    count: _I32,
    beta: float,
    smoothing: float,
    n_threads: int = 1,
) -> None: ...
