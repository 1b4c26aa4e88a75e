import numpy as np
from numpy.typing import NDArray

from toynn.signature import Entry

_F32 = NDArray[np.float32]
_U8 = NDArray[np.uint8]
_I32 = NDArray[np.int32]

entries: dict[str, Entry]
__test__: dict[str, str]
GGUF_TYPES: dict[str, int]  # of toynn.dtypes

def forward(y: _F32, w: _F32 | _U8, ids: _I32, type: str = "F32", n_threads: int = 1) -> None: ...
def backward(
    dw: _F32, dy: _F32, ids: _I32, accumulate: bool = False, n_threads: int = 1
) -> None: ...
