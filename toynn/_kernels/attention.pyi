import numpy as np
from numpy.typing import NDArray

from toynn.signature import Entry

_F32 = NDArray[np.float32]

entries: dict[str, Entry]
__test__: dict[str, str]

def forward(
    o: _F32,
    lse: _F32,
    q: _F32,
    k: _F32,
    v: _F32,
    first: NDArray[np.int32] | None = None,
    sinks: _F32 | None = None,
    causal: bool = True,
    scale: float | None = None,
    window: int = 0,
    cap: float = 0.0,
    n_threads: int = 1,
    precision: str = "highest",
) -> None: ...
def backward_sinks(
    dsinks: _F32,
    do: _F32,
    o: _F32,
    lse: _F32,
    sinks: _F32,
    accumulate: bool = False,
    n_threads: int = 1,
) -> None: ...
def backward(
    dq: _F32 | None,
    dk: _F32 | None,
    dv: _F32 | None,
    delta: _F32 | None,
    do: _F32,
    o: _F32,
    lse: _F32,
    q: _F32,
    k: _F32,
    v: _F32,
    first: NDArray[np.int32] | None = None,
    causal: bool = True,
    scale: float | None = None,
    window: int = 0,
    cap: float = 0.0,
    n_threads: int = 1,
    precision: str = "highest",
) -> None: ...
