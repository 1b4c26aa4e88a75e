"""A disk that fails once: each call that changes something, counted, and one of them refused."""

import errno
import os

from toynn.formats import disk


class Faults:
    """Counts the calls of `disk` in order; the one of number ``at`` fails, once."""

    def __init__(self, monkeypatch, at=None, code=errno.ENOSPC):
        self.calls = []
        for name in disk.CHANGES:
            monkeypatch.setattr(disk, name, self._counted(name, getattr(disk, name), at, code))

    def _counted(self, name, call, at, code):
        def counted(*arguments):
            self.calls.append(name)
            if len(self.calls) - 1 == at:
                raise OSError(code, os.strerror(code))
            return call(*arguments)

        return counted


def each_call(monkeypatch, reset, operation):
    """Yield, for each call that an operation makes from a state, what fails; then it is due."""
    reset()
    with monkeypatch.context() as patch:
        calls = Faults(patch).calls
        operation()
    for at, name in enumerate(calls):
        reset()
        with monkeypatch.context() as patch:
            Faults(patch, at)
            yield f"{name}, call {at}"
