import numpy as np
from numpy.typing import NDArray

from toynn.signature import Entry

_F32 = NDArray[np.float32]
_I32 = NDArray[np.int32]

entries: dict[str, Entry]
__test__: dict[str, str]

def forward(sums: _F32, losses: _F32, bounds: _I32, n_threads: int = 1) -> None: ...
def backward(dlosses: _F32, dsums: _F32, bounds: _I32, n_threads: int = 1) -> None: ...
