import numpy as np
from numpy.typing import NDArray

from toynn.signature import Entry

_F32 = NDArray[np.float32]
_I32 = NDArray[np.int32]

entries: dict[str, Entry]
__test__: dict[str, str]

def forward(
    weights: _F32,
    experts: _I32,
    p: _F32,
    normalized: bool = False,
    scale: float = 1.0,
    n_threads: int = 1,
) -> None: ...
def backward(
    dp: _F32,
    dweights: _F32,
    p: _F32,
    weights: _F32,
    experts: _I32,
    normalized: bool = False,
    scale: float = 1.0,
    n_threads: int = 1,
) -> None: ...
