"""An entry of a kernel as Python sees it: a callable that checks its arguments.

    rmsnorm.forward(y, r, x, w, eps=1e-5, n_threads=2)

Tensors are given in the order of the signature, or by name. Options, and sizes that no array shows,
are given by name. The signature (signature.py) says what is checked: type, contiguity, shape by
letter, which arrays may share memory. Then the kernel runs without the GIL.
"""

from collections.abc import Callable, Mapping
from functools import lru_cache
from itertools import combinations
from types import CodeType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from toynn._kernels.base import codebooks
from toynn._kernels.base._check import countable
from toynn._kernels.base.invoke import invoke, scratch_bytes
from toynn._kernels.base.pool import MAX_THREADS
from toynn._kernels.base.signature import Signature, TensorSpec, Unsolved, evaluate
from toynn.numerics.dtypes import GGUF_BLOCKS, GGUF_TYPES
from toynn.numerics.precision import NUMBERED

__all__ = ["ACTIVATIONS", "MAX_THREADS", "WORDS", "Entry"]

Array = NDArray[Any]
Checked = Callable[[str, Mapping[str, Array], Mapping[str, int], Mapping[str, float]], None]

CALLS = 64  # calls of an entry whose sizes are cached: solving takes half the time of a small call

ACTIVATIONS = ("none", "gelu_tanh", "gelu_exact")

#: Sizes that Python gives as words: the number of each word.
WORDS: dict[str, dict[str, int]] = {
    "precision": {name: number for number, name in enumerate(NUMBERED)},
    "activation": {name: number for number, name in enumerate(ACTIVATIONS)},
    "type": GGUF_TYPES,
}

_TYPES = {
    "f32": np.dtype(np.float32),
    "i32": np.dtype(np.int32),
    "u8": np.dtype(np.uint8),
    "u16": np.dtype(np.uint16),
}


class Entry:
    """A kernel and its signature. ``name`` is "rmsnorm.forward" once the module is loaded."""

    def __init__(
        self, capsule: Any, signature: str, scratch: Any = None, checked: Checked | None = None
    ) -> None:
        self.name = "kernel"
        self.capsule = capsule
        self.signature = Signature.parse(signature)
        self._scratch, self._checked = scratch, checked
        self._solved = lru_cache(CALLS)(self._solve)
        specs = self.signature.specs
        self._apart = [(a, b) for a, b in combinations(specs, 2) if a.written]  # written come first
        self._rows = [(spec.name, spec.row) for spec in specs if spec.row]
        self._bounded = [(spec, spec.below) for spec in specs if spec.below is not None]

    @property
    def __doc__(self) -> str:  # type: ignore[override]
        """A call of the kernel, and its signature."""
        signature = self.signature
        scalars = [*signature.arguments, *(["accumulate"] if signature.adds else []), "n_threads"]
        arguments = ", ".join([*signature.tensors, "*", *scalars])
        return f"{self.name}({arguments})\n\n    {signature}"

    def __repr__(self) -> str:
        return f"<kernel {self.name}: {self.signature}>"

    def workspace(
        self, sizes: Mapping[str, int], n_threads: int = 1, size: str = "", rows: int = 1
    ) -> int:
        """Return the bytes of scratch memory that the kernel needs at these sizes.

        If ``size`` names the size of so many ``rows``, the bytes serve any smaller number of them.
        Raises ValueError if these sizes make an array whose bytes cannot be counted.
        """
        for spec in self.signature.specs:
            countable(self.name, spec.name, spec.shape(sizes))
        return self._scratch_bytes(sizes, n_threads, size, rows)

    def _scratch_bytes(
        self, sizes: Mapping[str, int], n_threads: int, size: str = "", rows: int = 1
    ) -> int:
        if self._scratch is None:
            return 0
        names = self.signature.sizes
        ordered, slot = tuple(sizes[name] for name in names), names.index(size) if size else 0
        return int(scratch_bytes(self._scratch, ordered, n_threads, slot, rows))

    def __call__(
        self,
        *tensors: Array | None,
        n_threads: int = 1,
        accumulate: bool = False,
        kept: int = 0,
        **named: Any,
    ) -> None:
        """Check the arguments and run the kernel.

        ``accumulate`` adds to the tensors that the signature marks with "+". ``kept`` is the
        address for KernelArgs.kept. Raises ValueError for an array that does not fit the signature
        or an unknown word, TypeError for a missing or unknown argument, and MemoryError.
        """
        arrays, sizes, options = self.resolve(*tensors, **named)
        self._check_call(n_threads, accumulate)
        self._check_memory(arrays)
        self._check_integers(arrays, sizes)
        if self._checked is not None:
            self._checked(self.name, arrays, sizes, options)
        invoke(
            self.capsule,
            [arrays.get(name) for name in self.signature.tensors],
            tuple(sizes[name] for name in self.signature.sizes),
            tuple(options.values()),
            self._scratch_bytes(sizes, n_threads),
            accumulate,
            n_threads,
            kept,
        )

    def resolve(
        self, *tensors: Array | None, **named: Any
    ) -> tuple[dict[str, Array], dict[str, int], dict[str, float]]:
        """Return the arrays that were given, all sizes, and all options, by name.

        Raises TypeError and ValueError as a call does.
        """
        arrays, scalars = self._bound(tensors, named)
        sizes = self._sizes(arrays, scalars)
        return arrays, sizes, {name: float(scalars[name]) for name in self.signature.options}

    def _bound(
        self, tensors: tuple[Array | None, ...], named: dict[str, Any]
    ) -> tuple[dict[str, Array], dict[str, Any]]:
        """Return the arrays that were given, and the sizes and options, by name."""
        signature = self.signature
        names = signature.tensors[: len(tensors)]
        known = {*signature.tensors, *signature.sizes, *signature.options}
        wrong = [name for name in named if name in names or name not in known]
        if wrong or len(tensors) > len(signature.tensors):
            raise TypeError(
                f"{self.name}: takes no {', '.join(wrong) or 'more arrays'}; "
                f"the signature is {signature}"
            )
        values = dict(zip(names, tensors, strict=True)) | named
        missing = [s.name for s in signature.specs if not s.nullable and values.get(s.name) is None]
        missing += [
            n for n in signature.arguments if values.get(n) is None and n not in signature.defaults
        ]
        if missing:
            raise TypeError(
                f"{self.name}: needs {', '.join(missing)}; the signature is {signature}"
            )
        arrays = {name: values[name] for name in signature.tensors if values.get(name) is not None}
        scalars = {n: v for n, v in values.items() if n not in signature.tensors and v is not None}
        return arrays, {**signature.defaults, **scalars}

    def _check_call(self, n_threads: int, accumulate: bool) -> None:
        if not 1 <= n_threads <= MAX_THREADS:
            raise ValueError(f"{self.name}: n_threads must be 1 to {MAX_THREADS}; got {n_threads}")
        if accumulate and not self.signature.adds:
            raise TypeError(f"{self.name}: accumulates nothing; the signature is {self.signature}")

    def _sizes(self, arrays: dict[str, Array], scalars: dict[str, Any]) -> dict[str, int]:
        """Find all sizes; check each array's type, layout and shape."""
        signature = self.signature
        known = {
            name: self._number(name, value)
            for name, value in scalars.items()
            if name in signature.sizes and isinstance(value, int | str | np.integer)
        }
        shapes = {
            spec.name: self._shape(spec, arrays[spec.name], scalars)
            for spec in signature.specs
            if spec.name in arrays
        }
        for name, row in self._rows:
            if name in arrays:
                known.setdefault(row, _row(arrays[name]))
        try:
            sizes = dict(self._solved(tuple(shapes.items()), tuple(known.items())))
        except Unsolved as error:
            raise ValueError(f"{self.name}: {error}") from None
        self._check_rows(arrays, sizes)
        try:
            for name, given_or_default in scalars.items():
                if isinstance(given_or_default, CodeType):
                    value = signature.default(name, sizes)
                    if name in signature.sizes and name not in sizes:
                        sizes[name] = int(value)
                    else:
                        scalars[name] = value
        except ZeroDivisionError:
            raise ValueError(
                f"{self.name}: {name} of {signature} needs sizes above 0; got {sizes}"
            ) from None
        return sizes

    def _solve(
        self, shapes: tuple[tuple[str, tuple[int, ...]], ...], scalars: tuple[tuple[str, int], ...]
    ) -> Mapping[str, int]:
        for name, shape in shapes:
            countable(self.name, name, shape)
        return self.signature.solve(dict(shapes), dict(scalars))

    def _number(self, name: str, value: Any) -> int:
        if name not in WORDS:
            return int(value)
        if value not in WORDS[name]:
            words = ", ".join(WORDS[name])
            raise ValueError(f"{self.name}: {name} needs one of {words}; got {value!r}")
        if str(value).startswith("IQ"):
            codebooks.fill()
        return WORDS[name][str(value)]

    def _shape(self, spec: TensorSpec, array: Array, scalars: dict[str, Any]) -> tuple[int, ...]:
        """Return the shape of an array in elements, once its type and layout are checked."""
        if not isinstance(array, np.ndarray):
            raise self._unfit(spec, f"needs an array; got {type(array).__name__}")
        quantized = spec.kind not in _TYPES and scalars[spec.kind] != "F32"
        wanted = _TYPES["u8"] if quantized else _TYPES.get(spec.kind, _TYPES["f32"])
        if array.dtype != wanted:
            raise self._unfit(spec, f"needs {wanted}; got {array.dtype}")
        flags = array.flags
        if spec.written and not flags.writeable:
            raise self._unfit(spec, "is written, and this array is read-only")
        if not (flags.c_contiguous or (spec.row and _rows_contiguous(array))):
            raise self._unfit(spec, f"needs C-contiguous {'rows' if spec.row else 'memory'}")
        if not quantized:
            return array.shape
        elements, nbytes = GGUF_BLOCKS[scalars[spec.kind]]
        if array.ndim < 1 or array.shape[-1] % nbytes:
            raise self._unfit(
                spec, f"needs rows of whole blocks of {nbytes} bytes; got {spec.name} {array.shape}"
            )
        return (*array.shape[:-1], array.shape[-1] // nbytes * elements)

    def _unfit(self, spec: TensorSpec, why: str) -> ValueError:
        return ValueError(f"{self.name}: {spec} {why}")

    def _check_rows(self, arrays: Mapping[str, Array], sizes: Mapping[str, int]) -> None:
        """Refuse matrices whose rows are not as far apart as a size says."""
        for name, row in self._rows:
            if name in arrays and _row(arrays[name]) != sizes[row]:
                raise ValueError(
                    f"{self.name}: {name} needs rows {sizes[row]} elements apart ({row}); got "
                    f"{_row(arrays[name])}"
                )

    def _check_memory(self, arrays: Mapping[str, Array]) -> None:
        """Refuse overlapping arrays, except an output that may be the same array as an input."""
        for one, other in self._apart:
            a, b = arrays.get(one.name), arrays.get(other.name)
            if a is None or b is None or not np.may_share_memory(a, b):
                continue
            if not np.shares_memory(a, b):
                continue
            same = a.ctypes.data == b.ctypes.data and a.shape == b.shape
            if not (other.name in one.in_place and same):
                allowed = f"; it may be the same array as {' or '.join(one.in_place)}"
                raise ValueError(
                    f"{self.name}: {one.name} is written, and shares memory with {other.name}"
                    + (allowed if one.in_place else "")
                )

    def _check_integers(self, arrays: Mapping[str, Array], sizes: Mapping[str, int]) -> None:
        """Raise ValueError at the first integer that is out of its range."""
        for spec, formula in self._bounded:
            if spec.name not in arrays:
                continue
            name, array, below = spec.name, arrays[spec.name], evaluate(formula, sizes)
            wrong = ((array < 0) | (array >= below)) & (array != spec.also if spec.also else True)
            if wrong.any():
                at = tuple(int(axis[0]) for axis in wrong.nonzero())
                also = f" and not {spec.also}" if spec.also is not None else ""
                raise ValueError(
                    f"{self.name}: row {at[0]}: {name.removesuffix('s')} {array[at]} is outside "
                    f"0..{below - 1}{also}"
                )


def _row(array: Array) -> int:
    """Return how many elements apart rows are."""
    return int(array.strides[0]) // array.itemsize


def _rows_contiguous(array: Array) -> bool:
    """Whether the elements of each row of a matrix are side by side."""
    if array.ndim != 2 or array.strides[0] % array.itemsize:
        return False
    return array.shape[1] <= 1 or array.strides[1] == array.itemsize
