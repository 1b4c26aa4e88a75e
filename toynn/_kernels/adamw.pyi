import numpy as np
from numpy.typing import NDArray

from toynn.signature import Entry

_F32 = NDArray[np.float32]

entries: dict[str, Entry]
__test__: dict[str, str]

def step(w: _F32, m: _F32, v: _F32, g: _F32, hp: _F32, scale: _F32, n_threads: int = 1) -> None: ...
