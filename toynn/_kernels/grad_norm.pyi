from typing import Any

import numpy as np
from numpy.typing import NDArray

_F32 = NDArray[np.float32]

ELEMENTS_PER_PARTIAL: int
entries: dict[str, Any]
__test__: dict[str, str]

def forward(
    norm: _F32, scale: _F32, partial: _F32, g: _F32, control: _F32, n_threads: int = 1
) -> None: ...
