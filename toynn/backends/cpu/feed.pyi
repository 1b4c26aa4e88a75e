from collections.abc import Sequence
from typing import Any, Self

from typing_extensions import disjoint_base

__test__: dict[str, str]

@disjoint_base
class Feed:
    def __new__(
        cls, slots: list[tuple[int, tuple[int, ...], bool, int | None, bool]], kept: Any
    ) -> Self: ...
    def put(self, arrays: Sequence[Any]) -> bool: ...
