import threading
from collections.abc import Callable
from types import TracebackType
from typing import Any, TypeVar

from typing_extensions import disjoint_base

_F = TypeVar("_F", bound=Callable[..., Any])

__test__: dict[str, str]

@disjoint_base
class Section:
    def __init__(
        self,
        lock: threading.Lock | None = None,
        refusal: str | None = None,
        failed: Callable[[], object] | None = None,
    ) -> None: ...
    def __enter__(self) -> None: ...
    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None: ...

def stop_by_signal(text: bytes | None) -> bytes | None: ...
def stopping() -> bool: ...
def uninterrupted(function: _F) -> _F: ...
