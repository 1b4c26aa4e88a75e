import numpy as np
from numpy.typing import NDArray

from toynn.signature import Entry

_F32 = NDArray[np.float32]
_I32 = NDArray[np.int32]

entries: dict[str, Entry]
__test__: dict[str, str]

def count(rows: _F32, labels: _I32, classes: int, n_threads: int = 1) -> None: ...
def forward(losses: _F32, logits: _F32, labels: _I32, n_threads: int = 1) -> None: ...
def backward(
    dlogits: _F32,
    losses: _F32,
    dloss: _F32,
    logits: _F32,
    labels: _I32,
    rows: _F32,
    n_threads: int = 1,
) -> None: ...
def each(dlogits: _F32, dlosses: _F32, logits: _F32, labels: _I32, n_threads: int = 1) -> None: ...
def mean(loss: _F32, losses: _F32, rows: _F32, n_threads: int = 1) -> None: ...
