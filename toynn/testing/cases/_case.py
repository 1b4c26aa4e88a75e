"""The rows of the op-case table, and functions that make them."""

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

import toynn._kernels as kernels
from toynn import ops
from toynn._kernels.base.entry import WORDS, Entry
from toynn._kernels.base.signature import Signature, TensorSpec
from toynn.backends.reference import KERNELS
from toynn.backends.reference.kernel import Outputs
from toynn.graph.sizes import fill

Array = NDArray[Any]
Sizes = Mapping[str, int]


@dataclass(frozen=True)
class Call:
    """One call of a kernel from Python, and the expected outputs.

    ``arrays`` are the array arguments by name, in order, outputs first. A float output starts as
    NaN. An output that is also an input (a weight that is updated) is listed in ``initial``.
    ``expected`` holds the float64 reference of every output, or its bytes.
    """

    entry: str
    arrays: dict[str, Array]
    expected: dict[str, Array]
    options: dict[str, Any] = field(default_factory=dict)
    initial: tuple[str, ...] = ()  # outputs that are inputs too
    loses_nan: Mapping[str, str] = field(default_factory=dict)  # input: why its NaN may get lost
    without: tuple[str, ...] = ()  # outputs that nobody wants: None is passed
    op: str = ""  # OpCase sets it

    @property
    def kernel(self) -> Entry | None:
        """The kernel's entry; None for a function that only Python calls."""
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

    @property
    def free(self) -> tuple[str, ...]:
        """Names of the arrays whose shape neither another array nor the signature fixes."""
        if self.kernel is None:
            return tuple(self.arrays) if len(self.arrays) == 1 else ()
        signature = self.kernel.signature
        shown = Counter(n for a in self.arrays for n in {*_letters(signature[a])})
        return tuple(
            name
            for name in self.arrays
            if all(shown[n] == 1 for n in _letters(signature[name]))
            and not any(extent.isdigit() for extent in signature[name].extents)
        )

    def named(self) -> tuple[dict[str, int], dict[str, float]]:
        """Return all sizes and options by their names in the kernel's signature."""
        assert self.kernel is not None, f"{self.op}.{self.entry} has no sizes"
        values = {**self.arrays, **self.options, **dict.fromkeys(self.without)}
        _, sizes, options = self.kernel.resolve(**values)
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

    ``calls(rng, **sizes)`` makes float32 inputs and returns a Call of each entry. Tests of the
    kernel contract use the first of ``shapes`` that has no empty array and one array of more than
    32 elements.

    ``function`` and ``gradients`` are the forward pass and its analytic gradient in float64, for
    the check by finite differences. Their signatures are ``function(inputs, **sizes) -> y`` and
    ``gradients(inputs, dy, **sizes) -> {"d" + name: gradient}``, for each differentiable input.

    ``rough`` is the tolerance at a precision below "highest"; 0: the kernels take no precision.
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
        """Return the flops and bytes of a call at a shape, as its op counts them on a tape.

        For a kernel that no tape calls, flops are 0 and each array's bytes count once.
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
    without: tuple[str, ...] = (),
    **options: Any,
) -> Call:
    """Make a Call. Outputs have the shapes of ``expected``, and start as NaN or as in ``initial``.

    Floats become float32 and integers int32; unsigned ones stay. Unwritten integers start as -1,
    unsigned ones as their largest.
    """
    start = initial or {}
    outputs: dict[str, Array] = {
        name: np.array(start.get(name, _unwritten(value)), _stored(value))
        for name, value in expected.items()
    }
    stored = {name: _kept(value) for name, value in inputs.items()}
    return Call(entry, outputs | stored, expected, options, tuple(start), loses_nan or {}, without)


def reference(kernel: str, arrays: Mapping[str, Array], sizes: Mapping[str, Any]) -> Outputs:
    """Return the outputs of a kernel's float64 reference.

    ``sizes`` holds sizes and options; an option may be a word, such as "gelu_tanh". The reference
    takes the arrays, sizes and options that it names. Missing options have the signature's
    defaults; a missing optional tensor is None.
    """
    entry = KERNELS[kernel]
    signature = entry.signature
    numbers = {n: WORDS[n].get(v, v) if n in WORDS else v for n, v in sizes.items()}
    options = {name: numbers[name] for name in signature.options if name in numbers}
    numbers = {name: numbers[name] for name in signature.sizes if name in numbers}
    fill(kernel, signature, numbers, options)
    values = {**dict.fromkeys(signature.nullable), **numbers, **options, **arrays}
    with np.errstate(all="ignore"):
        return entry.compute(**{name: values[name] for name in entry.takes})


def derived(
    kernel: str,
    values: Mapping[str, Array],
    sizes: Mapping[str, Any] | None = None,
    *,
    exact: Mapping[str, Array] | None = None,
    loses_nan: Mapping[str, str] | None = None,
    without: tuple[str, ...] = (),
    **more: Any,
) -> Call:
    """Make the call of a kernel by its signature; it reads its inputs from ``values``.

    Expected outputs come from the reference on the same float32 numbers. ``exact`` replaces arrays
    for the reference, such as dequantized weights. ``sizes`` and ``more`` are sizes and options of
    the reference. The kernel gets only those that stand after "|" in the signature.
    """
    entry = kernel.partition(".")[2]
    signature, scalars = KERNELS[kernel].signature, {**(sizes or {}), **more}
    read = [s.name for s in signature.specs if not s.written or s.updated]
    arrays = {name: _kept(values[name]) for name in read if name in values}
    without = tuple(name for name in without if name in signature.names)
    expected = reference(kernel, widened(arrays) | dict(exact or {}), scalars)
    return call(
        entry,
        {
            name: expected[name]
            for name in signature.tensors
            if name in expected and name not in without
        },
        {name: array for name, array in arrays.items() if not signature[name].written},
        initial={name: array for name, array in arrays.items() if signature[name].written},
        loses_nan=loses_nan,
        without=without,
        **{name: scalars[name] for name in signature.arguments if name in scalars},
    )


def differentiable(
    op: str,
    inputs: Callable[..., dict[str, Array]] | None = None,
    *,
    shapes: tuple[dict[str, int], ...],
    bench: dict[str, dict[str, int]],
    tolerance: float,
    reason: str,
    rough: float = 0.0,
    forward: str = "forward",
    backward: tuple[str, ...] = ("backward",),
    options: Callable[[Sizes], Mapping[str, Any]] = dict,
    loses_nan: Callable[[str, Sizes], Mapping[str, str]] = lambda entry, sizes: {},
    without: Callable[[Sizes], tuple[str, ...]] = lambda sizes: (),
    more: Callable[..., list[Call]] | None = None,
    calls: Callable[..., list[Call]] | None = None,
) -> OpCase:
    """Return the case of an op with a forward entry and entries for its gradient.

    inputs
        ``inputs(rng, **sizes)`` returns the forward pass's inputs. ``sizes`` are all entries of a
        shape, also those that are no size, such as segments. Backward finds what it reads by name:
        the forward pass's inputs and outputs, and the gradient of its first output. By default all
        inputs are normal values, in the shapes of the signature.
    options
        Returns the options at a shape.
    loses_nan
        Returns, for an entry and a shape, the inputs whose NaN may get lost, and why.
    without
        Returns the outputs of backward that are not wanted.
    more
        ``more(rng, inputs, sizes)`` returns further calls.
    calls
        ``calls(rng, **sizes)``, if given, returns all calls.
    """
    ahead_of = KERNELS[f"{op}.{forward}"].signature
    make = inputs or partial(_plain, ahead_of)
    kernels = [entry if "." in entry else f"{op}.{entry}" for entry in backward]
    signatures = [KERNELS[kernel].signature for kernel in kernels]

    def run(arrays: Mapping[str, Array], sizes: Sizes) -> Outputs:
        return reference(f"{op}.{forward}", arrays, {**sizes, **options(sizes)})

    def function(arrays: dict[str, Array], **sizes: int) -> Array:
        return run(arrays, sizes)[first]

    def gradients(arrays: dict[str, Array], dy: Array, **sizes: int) -> dict[str, Array]:
        values = {**arrays, **run(arrays, sizes), f"d{first}": dy}
        grads: dict[str, Array] = {}
        for kernel in there(values):
            grads |= reference(kernel, values, {**sizes, **options(sizes)})
        return {name: grads[name] for name in grads if name.removeprefix("d") in arrays}

    def there(values: Mapping[str, Array]) -> list[str]:
        """Return the kernels whose inputs are all given; optional ones may be missing."""
        return [
            kernel
            for kernel, signature in zip(kernels, signatures, strict=True)
            if values.keys() >= set(signature.inputs) - signature.nullable
        ]

    def follow(rng: np.random.Generator, **sizes: int) -> list[Call]:
        arrays, scalars = make(rng, **sizes), {**sizes, **options(sizes)}
        ahead = derived(f"{op}.{forward}", arrays, scalars, loses_nan=loses_nan(forward, sizes))
        shape = ahead.expected[first].shape
        dy = np.full(1, 0.7) if shape == (1,) and first == "loss" else rng.standard_normal(shape)
        values = {**arrays, **ahead.expected, f"d{first}": dy}
        return [
            ahead,
            *(
                derived(
                    kernel,
                    values,
                    scalars,
                    loses_nan=loses_nan(kernel.partition(".")[2], sizes),
                    without=without(sizes),
                )
                for kernel in there(values)
            ),
            *(more(rng, arrays, sizes) if more else ()),
        ]

    first = ahead_of.outputs[0]
    return OpCase(
        op, shapes, bench, calls or follow, tolerance, reason, rough, make, function, gradients
    )


def _plain(signature: Signature, rng: np.random.Generator, **sizes: int) -> dict[str, Array]:
    specs = [spec for spec in signature.specs if not spec.written]
    return {spec.name: normal(rng, *spec.shape(sizes)) for spec in specs}


def shapes_of(names: str, *rows: str) -> tuple[dict[str, int], ...]:
    """Return shapes from a table: the names of the sizes, and the sizes of each shape.

    shapes_of("N C", "3 17, 0 8", "5 130 segments=4")

    Commas separate shapes. Sizes that only some shapes have come last, with their names.
    """
    table = []
    for shape in ", ".join(rows).split(","):
        words = [word.rpartition("=") for word in shape.split()]
        keys = [*names.split(), *(name for name, _, _ in words[len(names.split()) :])]
        table.append({key: int(word[2]) for key, word in zip(keys, words, strict=True)})
    return tuple(table)


def normal(rng: np.random.Generator, *shape: int, scale: float = 1.0) -> Array:
    """Return float32 numbers from N(0, scale)."""
    return (scale * rng.standard_normal(shape)).astype(np.float32)


def widened(arrays: Mapping[str, Array]) -> dict[str, Array]:
    """Return the arrays with floats as float64, and integers unchanged."""
    return {k: v.astype(np.float64) if v.dtype.kind == "f" else v for k, v in arrays.items()}


def _kept(value: Array) -> Array:
    return np.ascontiguousarray(value, _stored(value))


def _letters(spec: TensorSpec) -> set[str]:
    return {name for formula in spec.formulas for name in formula.co_names}


def _stored(value: Array) -> type[np.generic]:
    """Return the dtype in which kernels take an array."""
    if value.dtype.kind == "u":
        return value.dtype.type
    return np.float32 if value.dtype.kind == "f" else np.int32


def _unwritten(value: Array) -> Array:
    """Return the contents of an output before the call."""
    if value.dtype.kind in "iu":
        return np.full_like(value, np.iinfo(value.dtype).max if value.dtype.kind == "u" else -1)
    return np.full(value.shape, np.nan)
