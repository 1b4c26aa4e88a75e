import numpy as np
from numpy.typing import NDArray

from toynn.signature import Entry

_F32 = NDArray[np.float32]
_I32 = NDArray[np.int32]

entries: dict[str, Entry]
__test__: dict[str, str]

def forward(
    y: _F32, x: _F32, control: _I32, p: float, seed: int = 0, site: int = 0, n_threads: int = 1
) -> None: ...
