import numpy as np
from numpy.typing import NDArray

from toynn.signature import Entry

_F32 = NDArray[np.float32]

entries: dict[str, Entry]
__test__: dict[str, str]

def forward(y: _F32, x: _F32, n_threads: int = 1) -> None: ...
def backward(dx: _F32, dy: _F32, x: _F32, n_threads: int = 1) -> None: ...
