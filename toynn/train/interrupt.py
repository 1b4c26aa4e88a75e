"""Ctrl-C and SIGTERM: the first asks the loop to stop after its step, the second ends all."""

import os
import signal
import threading
import time
from types import FrameType

__all__ = ["Interrupt"]

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Interrupt:
    """While entered, a first SIGINT or SIGTERM sets ``requested``; the next one kills at once.

    For the second signal the system's own handler is put back, because one in Python would have
    to wait until a running program returns. In a thread other than the main one, where Python
    allows no handlers, nothing is installed. A signal that the parent chose to ignore stays so.
    """

    def __init__(self) -> None:
        self.requested = False
        self._since = 0.0
        self._previous: dict[int, signal._HANDLER] = {}

    def __enter__(self) -> "Interrupt":
        if threading.current_thread() is threading.main_thread():
            for number in SIGNALS:
                if signal.getsignal(number) is not signal.SIG_IGN:
                    self._previous[number] = signal.signal(number, self._handle)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
        self._previous.clear()

    @property
    def waited(self) -> float:
        """Seconds since the first signal; 0 before it."""
        return time.perf_counter() - self._since if self.requested else 0.0

    def _handle(self, number: int, frame: FrameType | None) -> None:
        self.requested, self._since = True, time.perf_counter()
        for each in self._previous:
            signal.signal(each, signal.SIG_DFL)
        # Not print: the signal may have come in the middle of a write to the same stream.
        os.write(2, b"\ntoynn: finishing the step, then saving; once more to stop at once\n")
