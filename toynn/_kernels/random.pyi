import numpy as np
from numpy.typing import NDArray

from toynn._kernels.base.entry import Entry

SEEDS: int

_F32 = NDArray[np.float32]

entries: dict[str, Entry]  # empty; the loader sets it in every module
__test__: dict[str, str]

def lcg_uniform(out: _F32, state: int, scale: float = 1.0, n_threads: int = 1) -> int: ...
def normal(out: _F32, seed: int, stream: int = 0, std: float = 1.0, n_threads: int = 1) -> None: ...
def uniform(
    out: _F32, seed: int, stream: int = 0, bound: float = 1.0, n_threads: int = 1
) -> None: ...
