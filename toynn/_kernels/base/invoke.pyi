from typing import Any

__test__: dict[str, str]

def scratch_bytes(
    scratch: Any, sizes: tuple[int, ...], n_threads: int, slot: int = 0, rows: int = 1
) -> int: ...
def invoke(
    kernel: Any,
    tensors: list[Any],
    sizes: tuple[int, ...],
    options: tuple[float, ...],
    scratch: int,
    accumulate: bool,
    n_threads: int,
    kept: int,
) -> None: ...
