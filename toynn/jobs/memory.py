"""What a run will need of memory, before any of it is taken."""

from typing import Any

from toynn.system.machine import free_memory
from toynn.system.printing import size

__all__ = ["check_fits"]


def check_fits(engine: Any, rows: int, ranks: int = 1) -> None:
    """Raise MemoryError if a training step of a declared engine needs more than is free.

    ``rows`` are those of a batch; ``ranks`` processes of this machine need as much each. What one
    row keeps of each block at the least is counted first: to record a step of millions of rows
    takes minutes.
    """
    free = free_memory()
    if free is None:
        return
    free //= ranks
    vectors = [w.size for w in engine.tensors.values() if len(w.shape) == 1]  # gains, as rows are
    least = 4 * rows * min(vectors, default=1) * engine.config.n_layers
    needed = least if least > free else engine.step_memory().peak
    if needed > free:
        more = "more than " if needed == least else ""
        each = f" for each of {ranks} ranks here" if ranks > 1 else ""
        raise MemoryError(f"a step needs {more}{size(needed)}; {size(free)} are free{each}")
