from typing import Any

__test__: dict[str, str]

class CompiledProgram:
    def __init__(self, capacity: int, workspace: int, buffers: list[Any]) -> None: ...
    def append(
        self,
        kernel: Any,
        addresses: list[int],
        sizes: tuple[int, ...],
        options: tuple[float, ...],
        policy: int,
        max_threads: int,
    ) -> None: ...
    def run(self, count: int, accumulate: bool, n_threads: int) -> None: ...
    def times(self) -> list[tuple[int, int]]: ...
