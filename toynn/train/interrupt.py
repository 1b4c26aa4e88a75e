"""Ctrl-C, SIGTERM, SIGHUP: the first stops the loop (loop.py says where), the second kills."""

import contextlib
import os
import signal
import sys
import threading
import time
from types import FrameType

from toynn.system import critical
from toynn.system.critical import uninterrupted
from toynn.system.platform import ASKS_TO_STOP, HANGUP

TEXT = b"\ntoynn: finishing the step, then saving; once more to stop at once\n"


class Interrupt:
    """In this context a first SIGINT, SIGTERM or SIGHUP sets ``requested``; the next one kills.

    A second SIGHUP does not kill: a shell that ends may repeat its terminal's. SIGHUP is ignored
    after the loop too, so that the run's last files are written whole.

    For the second signal the system's own handler is restored, because a handler in Python would
    wait until a running kernel returns. If both signals come within one critical section, the
    section's handler in C does the same: see ``critical.stop_by_signal``. Outside of the main
    thread, where Python allows no handlers, nothing is installed. Signals that are ignored stay
    ignored. Contexts nest: when the inner one ends, the outer one handles signals again.
    """

    def __init__(self) -> None:
        self.requested = False
        self.number: int | None = None  # of the signal
        self._since = 0.0
        self._hung_up = False
        self._previous: dict[int, signal._HANDLER] = {}
        self._entered = False
        self._others: bytes | None = None  # the answer of the outer context

    @uninterrupted
    def __enter__(self) -> "Interrupt":
        if threading.current_thread() is threading.main_thread():
            for number in ASKS_TO_STOP:
                if signal.getsignal(number) is not signal.SIG_IGN:
                    self._previous[number] = signal.signal(number, self._handle)
            self._others, self._entered = critical.stop_by_signal(self._answer()), True
        return self

    @uninterrupted
    def __exit__(self, *_: object) -> None:
        if self._entered:
            critical.stop_by_signal(self._others)
        handlers, self._previous, self._entered = self._previous, {}, False
        # The handler of Ctrl-C comes last: it may raise as soon as it is restored.
        for number, handler in reversed(handlers.items()):
            if not (number == HANGUP and self._hung_up and handler == signal.SIG_DFL):
                signal.signal(number, signal.SIG_DFL if handler is None else handler)

    @property
    def waited(self) -> float:
        """The seconds since the first signal; 0 before it."""
        return time.perf_counter() - self._since if self.requested else 0.0

    def _handle(self, number: int, frame: FrameType | None) -> None:
        self.requested, self._since, self.number = True, time.perf_counter(), number
        self._hung_up = number == HANGUP
        for each in self._previous:
            signal.signal(each, signal.SIG_IGN if each == HANGUP else signal.SIG_DFL)
        if not critical.stopping():
            # Not print: the signal may have interrupted a write to the same stream.
            with contextlib.suppress(OSError):  # after SIGHUP, the terminal has gone
                os.write(2, self._answer())

    def _answer(self) -> bytes:
        """Return what the first signal writes; nothing if descriptor 2 may be another file."""
        return b"" if sys.stderr is None else TEXT
