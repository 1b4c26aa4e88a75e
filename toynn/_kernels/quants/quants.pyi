import numpy as np
from numpy.typing import NDArray

_F32 = NDArray[np.float32]
_U8 = NDArray[np.uint8]

__test__: dict[str, str]

def dequantize(y: _F32, raw: _U8, type: int, n_threads: int = 1) -> None: ...
def quantize(raw: _U8, x: _F32, type: int, n_threads: int = 1) -> None: ...
