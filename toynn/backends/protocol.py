"""What a backend must offer, and the plain data with which it is asked.

A backend knows no tape. The session hands it *launches*: a kernel's name, where its tensors lie,
its sizes and options, in the order in which they run.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Protocol

from numpy.typing import NDArray

__all__ = ["ALIGNMENT", "Accumulate", "Backend", "Buffer", "Launch", "Place", "Program", "aligned"]

ALIGNMENT = 64  # bytes: a cache line, and the widest vector register


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
    """Where a tensor lies: a buffer's name and a byte offset in it."""

    buffer: str
    offset: int


@dataclass(frozen=True)
class Launch:
    """One kernel call: everything but the addresses and the number of threads."""

    segment: str  # to which it belongs: one letter
    kernel: str  # "rmsnorm.forward": module and entry
    tensors: tuple[Place | None, ...]
    sizes: tuple[int, ...]
    options: tuple[float, ...]
    accumulate: Accumulate
    flops: int
    nbytes: int


class Buffer(Protocol):
    """Zero-filled memory of a backend."""

    @property
    def nbytes(self) -> int:
        """Size in bytes."""

    def view(self, offset: int, shape: Sequence[int], dtype: str) -> NDArray[Any]:
        """Return an array over part of the buffer, without a copy."""


class Program(Protocol):
    """A compiled list of launches."""

    def run(self, segments: str, accumulate: bool, n_threads: int) -> None:
        """Run the launches that belong to these segments, in order."""

    def times(self) -> list[tuple[int, int]]:
        """Return (calls, nanoseconds) per launch since it was compiled."""

    def short_handed(self) -> int:
        """Return how many of those nanoseconds went by on fewer threads than were worth it."""


class Backend(Protocol):
    """Memory and programs on one kind of device."""

    name: str

    def max_threads(self) -> int:
        """Return how many threads a run may use now."""

    def workspace(self, launch: Launch, n_threads: int) -> int:
        """Return the bytes of scratch memory that a launch needs."""

    def allocate(self, nbytes: int) -> Buffer:
        """Return a zero-filled buffer."""

    def wrap(self, array: NDArray[Any]) -> Buffer:
        """Return the memory of a read-only array as a buffer, without a copy."""

    def compile(
        self,
        launches: Sequence[Launch],
        buffers: Mapping[str, Buffer],
        workspace: Place,
        n_threads: int,
    ) -> Program:
        """Turn launches into a program that runs without Python."""
