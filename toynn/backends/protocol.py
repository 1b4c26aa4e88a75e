"""The protocol of a backend, and the plain data that it gets.

A backend does not know the tape. The session hands it *launches*, in the order in which they run. A
launch has a kernel's name, where its tensors are stored, its sizes and options by name. The backend
decides how it runs them: on which threads, with how much scratch memory.

Order. Calls of one backend (upload, fill, run) take effect in order, as if each were finished when
it returns. A run may go on in the background until the caller asks for ``download``, ``times``,
``notes`` or ``wait``. These return when all earlier calls are done, and raise their errors. Until
then the backend keeps alive all that the run reads and writes. (On the CPU and the reference
backend a run is done when it returns.)
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from toynn.backends.work import seconds

ALIGNMENT = 64  # bytes: a cache line, and the widest vector register

#: Element types of buffers; "u8" is for the bytes of quantized blocks, "u16" for bfloat16.
ELEMENTS: dict[str, np.dtype[Any]] = {
    "f32": np.dtype(np.float32),
    "i32": np.dtype(np.int32),
    "u8": np.dtype(np.uint8),
    "u16": np.dtype(np.uint16),
}


def aligned(nbytes: int) -> int:
    """Round a size up to the next multiple of ALIGNMENT."""
    return -(-nbytes // ALIGNMENT) * ALIGNMENT


class Accumulate(IntEnum):
    """When a kernel adds to the parameter gradients that it writes, instead of overwriting them."""

    NEVER = 0
    ALWAYS = 1  # a later writer of the same gradient in the same step
    MICRO_BATCH = 2  # the first writer: overwrites in the first micro-batch, adds in later ones


class Place(NamedTuple):
    """Where a tensor is stored: a buffer's name and a byte offset in it."""

    buffer: str
    offset: int


@dataclass(frozen=True)
class RowLimit:
    """How many of ``rows`` rows are valid, known at run time: ``count`` less ``first``.

    The number is at least 0 and at most ``rows``. ``size`` names the size that grows with the rows:
    rows times a factor. The kernel gets the valid rows times this factor.
    """

    count: Place  # of an i32 that is written before the kernel runs
    size: str
    first: int
    rows: int

    def sizes(self, sizes: Mapping[str, int], count: int) -> dict[str, int]:
        """Return the sizes that a kernel gets if the i32 at ``count`` has this value."""
        valid = max(0, min(self.rows, count - self.first))
        return {**sizes, self.size: sizes[self.size] // self.rows * valid}


class Launch(NamedTuple):
    """One kernel call: everything but the addresses and the number of threads."""

    phase: str  # the phase that it belongs to: one letter
    kernel: str  # "rmsnorm.forward": module and entry
    tensors: Mapping[str, Place | None]  # by the names of the kernel's signature
    sizes: Mapping[str, int]
    options: Mapping[str, float]
    accumulate: Accumulate
    flops: int
    nbytes: int
    limit: RowLimit | None = None  # None: all rows
    frozen: frozenset[str] = frozenset()  # names of tensors that no run writes: frozen weights
    function: Any = None  # a HostFunction (host.py) in place of a kernel


@dataclass(frozen=True)
class UndoLog:
    """What the launches of phase U overwrite, and where a copy of it may be stored.

    ``overwritten`` has places and their bytes. ``spare`` has as many bytes in all; nothing else
    uses it from the first of these launches until the end of the run. All offsets and lengths are
    multiples of ALIGNMENT.
    """

    spare: Place
    overwritten: tuple[tuple[Place, int], ...]


class Buffer(Protocol):
    """Memory of a backend. Nobody else sees it: all data are copied in and out.

    Offsets are in bytes. Offsets of tensors are multiples of ALIGNMENT, except in wrapped memory,
    where the caller chose them. A range that is not within the buffer is refused with ValueError.
    """

    @property
    def nbytes(self) -> int:
        """Size in bytes."""

    def upload(self, offset: int, array: NDArray[Any]) -> None:
        """Copy a C-contiguous array to the bytes from ``offset`` on.

        The caller may change the array when this returns. Not for wrapped memory.
        """

    def download(self, offset: int, shape: Sequence[int], dtype: str) -> NDArray[Any]:
        """Return a copy of part of the buffer, as an array of one of ELEMENTS."""

    def fill(self, offset: int, nbytes: int) -> None:
        """Fill bytes with zeros. Not for wrapped memory."""


class Program(Protocol):
    """A compiled list of launches."""

    @property
    def scratch(self) -> int:
        """Bytes of the program's own memory."""

    def run(self, phases: str, accumulate: bool) -> None:
        """Run the launches that belong to these phases, in order.

        ``accumulate`` is true in all micro-batches but the first; see Accumulate.
        """

    def times(self) -> list[tuple[int, int]]:
        """Return (calls, nanoseconds) per launch since the program was compiled."""

    def notes(self) -> Mapping[str, int]:
        """Return remarks on ``times``: nanoseconds by what they were spent on."""


@runtime_checkable
class Stepping(Protocol):
    """An optional part of a program: run one launch at a time, to look at memory in between."""

    def run_one(self, launch: int, accumulate: bool) -> None:
        """Run a launch by its number. Run in order, launches compute what ``run`` computes."""


class FeedInput(NamedTuple):
    """One of the inputs of a step: where it is stored, and which numbers it may have.

    If ``size`` is given, every number must be in 0..size-1. If ``ignorable``, numbers may also be
    IGNORED, but not all of them.
    """

    buffer: Buffer
    offset: int
    shape: tuple[int, ...]
    dtype: str
    size: int | None = None
    ignorable: bool = False


class Feed(Protocol):
    """Copies all inputs of a step at once."""

    def put(self, arrays: Sequence[Any]) -> bool:
        """Copy an array to each input. If any of them may be wrong, return False and copy none."""


@runtime_checkable
class Feeds(Protocol):
    """An optional part of a backend: copy the inputs of tiny steps without NumPy."""

    def feed(self, inputs: Sequence[FeedInput]) -> Feed | None:
        """Return a feed that takes all inputs of a step in one call; None if it would not help."""


@runtime_checkable
class Prepacking(Protocol):
    """An optional part of a backend: pack frozen weights once, not in every run.

    Programs share prepacked weights.
    """

    #: Which frozen weights later compiled programs prepack: "never" none, "always" all, "auto"
    #: those where prepacking gains some percent.
    prepack: str

    def prepacked_nbytes(self, launches: Sequence[Launch] = (), prepack: str = "never") -> int:
        """Return the bytes of all prepacked weights, and of those that these launches would add."""


class Backend(Protocol):
    """Memory and programs on one kind of device."""

    name: str
    n_threads: int | None  # threads of the host that a run may use; None: no limit of its own
    #: Whether a run may fail half way, as on a device outside this process. Then programs get undo
    #: logs, and restore what those hold.
    undo_logs: bool = False

    def allocate(self, nbytes: int) -> Buffer:
        """Return zero-filled memory. Raises MemoryError."""

    def wrap(self, array: NDArray[np.uint8]) -> Buffer:
        """Return read-only bytes, such as a mapped file, as a buffer: in place if possible."""

    def scratch(self, launches: Sequence[Launch], undo_log: UndoLog | None = None) -> int:
        """Return the bytes that a program of these launches would allocate for itself."""

    def compile(
        self,
        launches: Sequence[Launch],
        buffers: Mapping[str, Buffer],
        undo_log: UndoLog | None = None,
    ) -> Program:
        """Turn launches into a program that runs without Python. Raises MemoryError."""

    def wait(self) -> None:
        """Return when all earlier calls are done. Raises their errors."""

    def seconds(self, launches: Sequence[Launch], prepack: str) -> float:
        """Estimate the seconds that a run of these launches takes, to compare choices of a tape.

        ``prepack`` is the choice of prepacked weights.
        """
        return sum(seconds(each.flops, each.nbytes) for each in launches)

    def multiplies_in(self) -> dict[str, str]:
        """Return the arithmetic of products in each precision, where it differs by machine."""
        return {}

    def automatic_precision(self) -> tuple[str, str]:
        """Return the precision of matrix products that "auto" means here, and why."""
        return "highest", f"no other is known to be faster on the backend {self.name}"
