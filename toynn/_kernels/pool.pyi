from typing import Any

__pyx_capi__: dict[str, Any]
__test__: dict[str, str]
MAX_THREADS: int

def refused() -> int: ...
def ask_again() -> None: ...
