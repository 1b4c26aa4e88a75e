import numpy as np
from numpy.typing import NDArray

from toynn.signature import Entry

_F32 = NDArray[np.float32]

entries: dict[str, Entry]
__test__: dict[str, str]

def add(y: _F32, a: _F32, b: _F32, n_threads: int = 1) -> None: ...
def accumulate(g: _F32, x: _F32, accumulate: bool = False, n_threads: int = 1) -> None: ...
def scale(y: _F32, x: _F32, alpha: float, n_threads: int = 1) -> None: ...
def bias_backward(db: _F32, dy: _F32, accumulate: bool = False, n_threads: int = 1) -> None: ...
