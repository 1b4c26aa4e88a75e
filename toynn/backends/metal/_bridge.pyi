from collections.abc import Sequence
from typing import Any, Self

from typing_extensions import disjoint_base

__test__: dict[str, str]

@disjoint_base
class Device:
    def __new__(cls) -> Self: ...
    def limits(self) -> dict[str, Any]: ...

@disjoint_base
class Memory:
    def __new__(cls, device: Device, nbytes: int, pages: int = 0, owner: object = None) -> Self: ...
    nbytes: int
    def view(self) -> memoryview: ...

@disjoint_base
class Library:
    def __new__(cls, device: Device, source: str) -> Self: ...

@disjoint_base
class Pipeline:
    def __new__(cls, library: Library, function: str) -> Self: ...
    threads: int

@disjoint_base
class Commands:
    def __new__(cls) -> Self: ...
    def wait(self) -> float: ...

@disjoint_base
class Dispatches:
    def __new__(cls, device: Device, capacity: int) -> Self: ...
    def append(
        self,
        phase: str,
        pipeline: Pipeline,
        memories: list[Memory],
        first: list[int],
        later: list[int],
        groups: Sequence[int],
        threads: Sequence[int],
    ) -> None: ...
    def commit(self, phases: str, accumulate: bool) -> Commands: ...
