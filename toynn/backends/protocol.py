"""The protocol of a backend, and the plain data that it gets.

A backend knows no tape. The session hands it *launches*: a kernel's name, where its tensors are
stored, its sizes and options by name, in the order in which they run. What a backend does with
them, on which threads, with how much scratch memory, is its own matter.

Order. Calls of one backend (upload, fill, run) take effect in their order, as if each were finished
when it returns. A run may still go on in the background until somebody calls ``download``,
``times``, ``notes`` or ``wait``. These return when all that was asked for before is done, and raise
what went wrong in it. Until then the backend keeps alive whatever the run reads and writes. (A run
of the CPU's, and of the reference, is done when it returns.)
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

__all__ = [
    "ALIGNMENT",
    "ELEMENTS",
    "Accumulate",
    "Backend",
    "Buffer",
    "Feed",
    "FeedInput",
    "Feeds",
    "Launch",
    "Place",
    "Prepacking",
    "Program",
    "RowLimit",
    "Stepping",
    "UndoLog",
    "aligned",
]

ALIGNMENT = 64  # bytes: a cache line, and the widest vector register

#: What buffers are read and written as; "u8" are the bytes of blocks.
ELEMENTS: dict[str, np.dtype[Any]] = {
    "f32": np.dtype(np.float32),
    "i32": np.dtype(np.int32),
    "u8": np.dtype(np.uint8),
}


def aligned(nbytes: int) -> int:
    """Round a size up to the next multiple of ALIGNMENT."""
    return -(-nbytes // ALIGNMENT) * ALIGNMENT


class Accumulate(IntEnum):
    """When a kernel adds to the parameter gradients that it writes."""

    NEVER = 0
    ALWAYS = 1  # a later writer of the same gradient in the same step
    MICRO_BATCH = 2  # the first writer: overwrites in the first micro-batch, adds in later ones


@dataclass(frozen=True)
class Place:
    """Where a tensor is stored: a buffer's name and a byte offset in it."""

    buffer: str
    offset: int


@dataclass(frozen=True)
class RowLimit:
    """The number of valid rows, known at run time: ``count`` less ``first``, at most ``rows``.

    The kernel is given size / rows times as many; 0, if no row is valid.
    """

    count: Place  # of an i32, which is known when the kernel is to run
    size: str
    first: int
    rows: int

    def sizes(self, sizes: Mapping[str, int], count: int) -> dict[str, int]:
        """Return the sizes that a kernel is given where ``count`` says so many."""
        valid = max(0, min(self.rows, count - self.first))
        return {**sizes, self.size: sizes[self.size] // self.rows * valid}


@dataclass(frozen=True)
class Launch:
    """One kernel call: everything but the addresses and the number of threads."""

    segment: str  # to which it belongs: one letter
    kernel: str  # "rmsnorm.forward": module and entry
    tensors: Mapping[str, Place | None]  # by the names that op and kernel have in common
    sizes: Mapping[str, int]
    options: Mapping[str, float]
    accumulate: Accumulate
    flops: int
    nbytes: int
    limit: RowLimit | None = None  # None: all
    frozen: frozenset[str] = frozenset()  # of the tensors: weights that no run writes


@dataclass(frozen=True)
class UndoLog:
    """What the launches of segment U overwrite, and where a copy of it may be stored.

    ``spare`` is memory that nothing else uses from the first of these launches until the end of the
    run. It has as many bytes as ``overwritten``: places, with their lengths. All are multiples of
    ALIGNMENT.
    """

    spare: Place
    overwritten: tuple[tuple[Place, int], ...]


class Buffer(Protocol):
    """Memory of a backend. Nobody else sees it: what goes in and comes out is copied.

    Offsets are in bytes. Those of tensors are multiples of ALIGNMENT but in wrapped memory, where
    they are as the caller has them. A range that is not within the buffer is refused with
    ValueError.
    """

    @property
    def nbytes(self) -> int:
        """Size in bytes."""

    def upload(self, offset: int, array: NDArray[Any]) -> None:
        """Copy a C-contiguous array to the bytes from ``offset`` on.

        The caller may change the array when this returns. Not into wrapped memory.
        """

    def download(self, offset: int, shape: Sequence[int], dtype: str) -> NDArray[Any]:
        """Return a copy of what is stored there, as an array of one of ELEMENTS."""

    def fill(self, offset: int, nbytes: int) -> None:
        """Fill bytes with zeros. Not in wrapped memory."""


class Program(Protocol):
    """A compiled list of launches."""

    @property
    def scratch(self) -> int:
        """Bytes of memory that the program has of its own."""

    def run(self, segments: str, accumulate: bool) -> None:
        """Run the launches that belong to these segments, in order.

        ``accumulate``: this is not the first micro-batch, see Accumulate.
        """

    def times(self) -> list[tuple[int, int]]:
        """Return (calls, nanoseconds) per launch since the program was compiled."""

    def notes(self) -> Mapping[str, int]:
        """Return remarks on these nanoseconds: how many of them were spent how."""


@runtime_checkable
class Stepping(Protocol):
    """What a program may offer beside: one launch at a time, to look at memory before and after."""

    def run_one(self, launch: int, accumulate: bool) -> None:
        """Run a launch by its number; all of a run in turn compute what ``run`` computes."""


class FeedInput(NamedTuple):
    """One of the inputs of a step: where it is, and what may be in it.

    ``size``: every number is in 0..size-1, or, if ``ignorable``, IGNORED, but not all of them.
    """

    buffer: Buffer
    offset: int
    shape: tuple[int, ...]
    dtype: str
    size: int | None = None
    ignorable: bool = False


class Feed(Protocol):
    """The way in for all inputs of a step at once."""

    def put(self, arrays: Sequence[Any]) -> bool:
        """Copy an array to each; return False, and copy none, unless all are plainly right."""


@runtime_checkable
class Feeds(Protocol):
    """What a backend may offer beside: inputs of tiny steps go in without NumPy."""

    def feed(self, inputs: Sequence[FeedInput]) -> Feed | None:
        """Return what takes all inputs of a step in one call; None where it would not help."""


@runtime_checkable
class Prepacking(Protocol):
    """What a backend may offer beside: frozen weights are packed once, not in every run.

    Programs share prepacked weights.
    """

    #: Which frozen weights the programs compiled from now on prepack: "never" any, "always" all,
    #: "auto" those where that gains some percent.
    prepack: str

    def prepacked_nbytes(self, launches: Sequence[Launch] = (), prepack: str = "never") -> int:
        """Return the bytes of all prepacked weights, with those that these launches add."""


class Backend(Protocol):
    """Memory and programs on one kind of device."""

    name: str
    n_threads: int | None  # of the host, which a run may use; None: as many as it likes
    #: Whether a run may fail half way: the device is not this process. A program then restores
    #: what its undo log holds. Without it there are no undo logs.
    undo_logs: bool = False

    def allocate(self, nbytes: int) -> Buffer:
        """Return zero-filled memory. Raises MemoryError."""

    def wrap(self, array: NDArray[np.uint8]) -> Buffer:
        """Return read-only bytes, such as a mapped file, as a buffer: in place, if that can be."""

    def scratch(self, launches: Sequence[Launch], undo_log: UndoLog | None = None) -> int:
        """Return how much memory of its own a program of these launches would have."""

    def compile(
        self,
        launches: Sequence[Launch],
        buffers: Mapping[str, Buffer],
        undo_log: UndoLog | None = None,
    ) -> Program:
        """Turn launches into a program that runs without Python. Raises MemoryError."""

    def wait(self) -> None:
        """Return when all that was asked for is done."""

    def multiplies_in(self) -> dict[str, str]:
        """Return what products of each precision are made of, where that differs by machine."""
        return {}

    def automatic_precision(self) -> tuple[str, str]:
        """Return which precision of matrix products "auto" stands for here, and why."""
        return "highest", f"no other is known to be faster on the backend {self.name}"
