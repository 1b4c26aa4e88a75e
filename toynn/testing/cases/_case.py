"""What a row of the op-case table is."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

import toynn._kernels as kernels
from toynn import ops
from toynn._kernels.entry import Entry

__all__ = ["Array", "Call", "OpCase", "Sizes", "call"]

Array = NDArray[Any]
Sizes = Mapping[str, int]


@dataclass(frozen=True)
class Call:
    """One call of a kernel's Python door, and what it must give.

    ``arrays`` are its array arguments by name, in order, outputs first. An output starts as NaN,
    or, where it is an input too (a weight that is updated), as given in ``initial``.
    ``expected`` holds the float64 reference of every output, or its bytes.
    """

    entry: str
    arrays: dict[str, Array]
    expected: dict[str, Array]
    options: dict[str, Any] = field(default_factory=dict)
    initial: tuple[str, ...] = ()  # outputs that are inputs too
    loses_nan: Mapping[str, str] = field(default_factory=dict)  # input: why its NaN may get lost
    free: tuple[str, ...] = ()  # arrays whose length no other argument fixes
    without: tuple[str, ...] = ()  # outputs that are None: nobody wants them
    op: str = ""  # OpCase fills it in

    @property
    def kernel(self) -> Entry | None:
        """The entry that is called; None: a function that no program calls."""
        entry: Entry | None = getattr(kernels, self.op).entries.get(self.entry)
        return entry

    @property
    def accumulates(self) -> tuple[str, ...]:
        """Names of the outputs that obey accumulate=True."""
        adds = self.kernel.signature.adds if self.kernel else ()
        return tuple(name for name in adds if name in self.expected)

    @property
    def in_place(self) -> list[tuple[str, str]]:
        """Pairs of an output and an input whose memory it may share."""
        specs = self.kernel.signature.specs if self.kernel else ()
        return [(spec.name, x) for spec in specs for x in spec.in_place if x in self.arrays]

    def named(self) -> tuple[dict[str, int], dict[str, float]]:
        """Return all sizes and options by the names of the kernel."""
        assert self.kernel is not None, f"{self.op}.{self.entry} has no sizes"
        given = {**self.arrays, **self.options, **dict.fromkeys(self.without)}
        _, sizes, options = self.kernel.resolve(**given)
        return sizes, options

    @property
    def inputs(self) -> tuple[str, ...]:
        """Names of the arrays that the call reads."""
        return tuple(n for n in self.arrays if n not in self.expected or n in self.initial)

    @property
    def nbytes(self) -> int:
        """Bytes that the call moves if it reads and writes each array once."""
        return sum(array.nbytes for array in self.arrays.values())


@dataclass(frozen=True)
class OpCase:
    """One op: float64 reference, shapes, tolerance with its reason, named shapes for timing.

    ``calls(rng, **sizes)`` makes the inputs (float32) and returns each door's Call. Tests of the
    contract take the first of ``shapes`` with no empty array and one of more than 32 elements.
    ``function`` and ``gradients`` are the float64 forward and its analytic gradient, for the check
    by finite differences: ``function(inputs, **sizes) -> y`` and
    ``gradients(inputs, dy, **sizes) -> {"d" + name: gradient}`` for each differentiable input.
    ``rough`` is the tolerance with a precision below "highest"; 0: the doors take no precision.
    """

    op: str
    shapes: tuple[dict[str, int], ...]
    bench: dict[str, dict[str, int]]
    calls: Callable[..., list[Call]]
    tolerance: float
    reason: str
    rough: float = 0.0
    inputs: Callable[..., dict[str, Array]] | None = None
    function: Callable[..., Array] | None = None
    gradients: Callable[..., dict[str, Array]] | None = None

    def __post_init__(self) -> None:
        make = self.calls

        def calls(rng: np.random.Generator, **sizes: int) -> list[Call]:
            return [replace(call, op=self.op) for call in make(rng, **sizes)]

        object.__setattr__(self, "calls", calls)

    def work(self, call: Call, shape: Sizes) -> tuple[int, int]:
        """Return the flops and bytes of a call at a shape: what its op counts on a tape.

        Of what no tape has, flops are 0 and bytes those of each array, read or written once.
        """
        op = ops.TABLE.get(f"{self.op}.{call.entry}")
        if op is None:
            return 0, call.nbytes
        sizes = {**shape, **call.named()[0], **op.signature.there(call.arrays)}
        return op.flops(sizes), op.nbytes(sizes) if op.nbytes else call.nbytes


def call(
    entry: str,
    expected: dict[str, Array],
    inputs: dict[str, Array],
    *,
    initial: Mapping[str, Array] | None = None,
    loses_nan: Mapping[str, str] | None = None,
    free: tuple[str, ...] = (),
    without: tuple[str, ...] = (),
    **options: Any,
) -> Call:
    """Make a Call: outputs like ``expected`` but NaN (or as in ``initial``), then the inputs.

    Floats are rounded to float32, integers to int32 (an output: -1); bytes stay bytes (255).
    """
    start = initial or {}
    outputs: dict[str, Array] = {
        name: np.array(start.get(name, _unwritten(value)), _stored(value))
        for name, value in expected.items()
    }
    given: dict[str, Array] = {
        name: np.ascontiguousarray(value, _stored(value)) for name, value in inputs.items()
    }
    return Call(
        entry,
        outputs | given,
        expected,
        options,
        tuple(start),
        loses_nan or {},
        free,
        without,
    )


def _stored(value: Array) -> type[np.generic]:
    """Return the type in which a kernel takes an array."""
    if value.dtype == np.uint8:
        return np.uint8
    return np.float32 if value.dtype.kind == "f" else np.int32


def _unwritten(value: Array) -> Array:
    """Return what an output holds before the call."""
    if value.dtype.kind in "iu":
        return np.full_like(value, 255 if value.dtype == np.uint8 else -1)
    return np.full(value.shape, np.nan)
