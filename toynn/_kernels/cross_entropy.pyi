import numpy as np
from numpy.typing import NDArray

from toynn.signature import Entry

_F32 = NDArray[np.float32]
_I32 = NDArray[np.int32]

entries: dict[str, Entry]
__test__: dict[str, str]

def forward(
    loss: _F32, lse: _F32, rows: _F32, logits: _F32, labels: _I32, n_threads: int = 1
) -> None: ...
def backward(
    dlogits: _F32,
    dloss: _F32,
    logits: _F32,
    labels: _I32,
    lse: _F32,
    rows: _F32,
    n_threads: int = 1,
) -> None: ...
def forward_dense(
    loss: _F32, lse: _F32, rows: _F32, logits: _F32, labels: _F32, n_threads: int = 1
) -> None: ...
def backward_dense(
    dlogits: _F32,
    dloss: _F32,
    logits: _F32,
    labels: _F32,
    lse: _F32,
    rows: _F32,
    n_threads: int = 1,
) -> None: ...
