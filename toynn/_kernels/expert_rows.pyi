import numpy as np
from numpy.typing import NDArray

from toynn.signature import Entry

_I32 = NDArray[np.int32]

entries: dict[str, Entry]
__test__: dict[str, str]

def forward(slots: _I32, offsets: _I32, experts: _I32, n_threads: int = 1) -> None: ...
