import numpy as np
from numpy.typing import NDArray

from toynn.signature import Entry

_F32 = NDArray[np.float32]

entries: dict[str, Entry]
__test__: dict[str, str]

def workspace(name: str, n: int, n_threads: int = 1) -> int: ...
def tiles(N: int, K: int) -> int: ...
def forward(
    norm: _F32, scale: _F32, g: _F32, control: _F32, n_threads: int = 1, kept: int = 0
) -> None: ...
