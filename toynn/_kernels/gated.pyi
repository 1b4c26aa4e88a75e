import numpy as np
from numpy.typing import NDArray

from toynn.signature import Entry

_F32 = NDArray[np.float32]

entries: dict[str, Entry]
__test__: dict[str, str]

def queries(q: _F32, x: _F32, heads: int = 1, n_threads: int = 1) -> None: ...
def queries_backward(dx: _F32, dq: _F32, heads: int = 1, n_threads: int = 1) -> None: ...
def forward(y: _F32, o: _F32, x: _F32, heads: int = 1, n_threads: int = 1) -> None: ...
def backward(
    do: _F32, dx: _F32, dy: _F32, o: _F32, x: _F32, heads: int = 1, n_threads: int = 1
) -> None: ...
