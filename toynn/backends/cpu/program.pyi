from typing import Any, Self

from typing_extensions import disjoint_base

__test__: dict[str, str]

@disjoint_base
class CompiledProgram:
    def __new__(cls, capacity: int, workspace: int, buffers: list[Any]) -> Self: ...
    def append(
        self,
        phase: str,
        kernel: Any,
        addresses: list[int],
        sizes: tuple[int, ...],
        options: tuple[float, ...],
        policy: int,
        max_threads: int,
        seconds: float,
        kept: int = 0,
        name: str = "",
        nbytes: int = 0,
    ) -> None: ...
    def limit(self, count: int, size: int, first: int, rows: int) -> None: ...
    def skip(self, name: str) -> None: ...
    def run(
        self,
        phases: str,
        accumulate: bool,
        n_threads: int,
        first: int = 0,
        end: int | None = None,
    ) -> None: ...
    def times(self) -> list[tuple[int, int]]: ...
    def short_handed(self) -> int: ...
