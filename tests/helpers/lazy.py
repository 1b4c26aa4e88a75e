"""A backend that puts everything off until somebody looks, and writes down what it was asked."""

import numpy as np

from toynn import backends
from toynn.backends.cpu import CPU


class Lazy:
    """The CPU's kernels behind a queue, as a device has one."""

    name = "lazy"
    undo_logs = False

    def __init__(self, n_threads=None):
        self.inner = CPU(n_threads)
        self.calls, self.queue, self.ran = [], [], 0

    n_threads = property(
        lambda self: self.inner.n_threads, lambda self, n: setattr(self.inner, "n_threads", n)
    )

    def later(self, call, *arguments):
        self.calls.append(call)
        self.queue.append(arguments)

    def automatic_precision(self):
        return self.inner.automatic_precision()

    def wait(self):
        queue, self.queue = self.queue, []
        for function, *arguments in queue:
            function(*arguments)

    def allocate(self, nbytes):
        return LazyBuffer(self, self.inner.allocate(nbytes))

    def wrap(self, array):
        self.calls.append(("wrap", array.nbytes))
        return LazyBuffer(self, self.inner.wrap(array))

    def scratch(self, launches, undo_log):
        return self.inner.scratch(launches)

    def compile(self, launches, buffers, undo_log):
        inner = {name: buffer.inner for name, buffer in buffers.items()}
        return LazyProgram(self, self.inner.compile(launches, inner))


class LazyBuffer:
    def __init__(self, backend, inner):
        self.backend, self.inner = backend, inner
        self.nbytes = inner.nbytes

    def upload(self, offset, array):
        assert array.flags.c_contiguous
        self.backend.later("upload", self.inner.upload, offset, np.array(array))

    def fill(self, offset, nbytes):
        self.backend.later("fill", self.inner.fill, offset, nbytes)

    def download(self, offset, shape, dtype):
        self.backend.calls.append("download")
        self.backend.wait()
        return self.inner.download(offset, shape, dtype)


class LazyProgram:
    def __init__(self, backend, inner):
        self.backend, self.inner, self.scratch = backend, inner, inner.scratch

    def run(self, segments, accumulate):
        self.backend.later(f"run {segments}", self._run, segments, accumulate)

    def _run(self, segments, accumulate):
        self.backend.ran += 1
        self.inner.run(segments, accumulate)

    def times(self):
        self.backend.wait()
        return self.inner.times()

    def notes(self):
        return {"in the queue": sum(spent for _, spent in self.times())}


backends.register("lazy", Lazy)
