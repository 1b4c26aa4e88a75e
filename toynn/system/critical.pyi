from collections.abc import Callable
from types import TracebackType
from typing import Any, Protocol, TypeVar, type_check_only

from typing_extensions import disjoint_base

_F = TypeVar("_F", bound=Callable[..., Any])

@type_check_only
class _Lock(Protocol):
    def acquire(self, blocking: bool) -> bool: ...
    def release(self) -> None: ...

__test__: dict[str, str]

@disjoint_base
class Section:
    def __init__(
        self,
        lock: _Lock | None = None,
        refusal: str | None = None,
        failed: Callable[[], object] | None = None,
        signals: bool = False,
    ) -> None: ...
    def __enter__(self) -> None: ...
    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None: ...
    def __del__(self) -> None: ...

def stop_by_signal(text: bytes | None) -> bytes | None: ...
def stopping() -> bool: ...
def uninterrupted(function: _F) -> _F: ...
def exclusive(method: _F) -> _F: ...
