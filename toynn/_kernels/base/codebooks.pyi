from typing import Any

__pyx_capi__: dict[str, Any]
__test__: dict[str, str]

def fill() -> None: ...
def rows() -> dict[str, bytes]: ...
