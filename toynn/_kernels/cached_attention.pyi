import numpy as np
from numpy.typing import NDArray

from toynn.signature import Entry

_F32 = NDArray[np.float32]
_I32 = NDArray[np.int32]

entries: dict[str, Entry]
__test__: dict[str, str]

def workspace(
    name: str,
    B: int,
    T: int,
    H: int,
    KV: int,
    D: int,
    S: int,
    ldq: int,
    ldk: int,
    ldv: int,
    window: int,
    n_threads: int = 1,
) -> int: ...
def forward(
    o: _F32,
    kc: _F32,
    vc: _F32,
    q: _F32,
    k: _F32,
    v: _F32,
    past: _I32,
    sinks: _F32 | None = None,
    scale: float | None = None,
    window: int = 0,
    cap: float = 0.0,
    n_threads: int = 1,
) -> None: ...
