from typing import final

__test__: dict[str, str]

@final
class ThreadCount:
    full: int
    size: int

    def __init__(self, full: int) -> None: ...
    def note(self, usual: float, took: float) -> None: ...
    def on_trial(self) -> bool: ...
