import numpy as np
from numpy.typing import NDArray

from toynn.signature import Entry

_F32 = NDArray[np.float32]
_I32 = NDArray[np.int32]

entries: dict[str, Entry]
__test__: dict[str, str]

def forward(y: _F32, x: _F32, slots: _I32, n_threads: int = 1) -> None: ...
def combine(y: _F32, x: _F32, slots: _I32, n_threads: int = 1) -> None: ...
def weigh(y: _F32, x: _F32, w: _F32, slots: _I32, n_threads: int = 1) -> None: ...
def weigh_backward(
    dx: _F32,
    dw: _F32,
    dy: _F32,
    x: _F32,
    w: _F32,
    slots: _I32,
    n_threads: int = 1,
) -> None: ...
