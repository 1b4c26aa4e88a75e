import numpy as np
from numpy.typing import NDArray

from toynn.signature import Entry

_I32 = NDArray[np.int32]

entries: dict[str, Entry]
__test__: dict[str, str]

def forward(rows: _I32, picked: _I32, count: _I32, labels: _I32, n_threads: int = 1) -> None: ...
