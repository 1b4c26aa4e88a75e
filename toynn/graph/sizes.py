"""Solve the sizes of a node (the letters of a signature) from the node's tensors.

    rmsnorm.forward   y[N C]; r[N] <- x[N C] w[C]        x (256, 576), w (576,): N = 256, C = 576

A tape has matrices, one row for each token; a kernel's array may have more axes. So

    x[N H D]     fits a matrix (N, H D): its columns are all axes but the first
    x[n]         fits any shape, the same one for all such tensors of a node
    loss[1]      fits a scalar, ()
    q[N C]@ldq   fits a matrix of ldq columns, of which the kernel reads C
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from math import prod
from types import MappingProxyType
from typing import Any

from toynn._kernels.base import codebooks
from toynn._kernels.base.entry import WORDS
from toynn._kernels.base.signature import Signature, TensorSpec, Unsolved, evaluate
from toynn.errors import ConfigError, ShapeError
from toynn.graph.tensor import Tensor
from toynn.numerics import dtypes

Tensors = Mapping[str, Tensor | None]
Shape = tuple[int, ...]


@dataclass(eq=False, slots=True)
class Solved:
    """Sizes and options, read-only, that all nodes of an op with the same shapes share.

    ``shapes`` are those of the tensors that must be made. Nodes note their work here.
    """

    sizes: Mapping[str, int]
    options: Mapping[str, float]
    shapes: Mapping[str, Shape]
    flops: int | None = None
    nbytes: int | None = None  # of nodes that read and write each tensor once

    def __post_init__(self) -> None:
        self.sizes, self.options = MappingProxyType(self.sizes), MappingProxyType(self.options)


def solve(
    what: str,
    signature: Signature,
    tensors: Tensors,
    scalars: Mapping[str, Any],
    *,
    grouped: bool = False,
) -> Solved:
    """Find all sizes of a signature from tensors, and from given sizes and options.

    A written tensor that ``tensors`` lacks must be made; ``shapes`` has its shape. ``grouped``:
    columns of x[N C] may be several groups of C = w.size, each of which is a row for the kernel.

    Raises ShapeError, which names the tensor that does not fit, and ConfigError for a missing or
    unknown size or word.
    """
    there = {spec.name: t for spec in signature.specs if (t := tensors.get(spec.name)) is not None}
    width = there["w"].size if grouped else 0
    specs, shapes = [], {}
    for spec in signature.specs:
        if spec.name in there:
            spec, shapes[spec.name] = _seen(spec, there[spec.name].shape, width)
        specs.append(spec)
    sizes_of_call = {name: _number(what, name, value) for name, value in scalars.items()}
    typed = list(_typed(signature, there))
    sizes_of_call |= {s.kind: dtypes.DTYPES[t.dtype].ggml for s, t in typed}
    if any(t.dtype.startswith("iq") for _, t in typed):
        codebooks.fill()  # a kernel only gets the type's number
    options = {name: sizes_of_call.pop(name) for name in signature.options if name in sizes_of_call}
    try:
        alike = _alike(signature, there)
        sizes = replace(signature, specs=tuple(specs)).solve(shapes, sizes_of_call)
        _check_columns(signature, there, sizes)
    except Unsolved as error:
        raise ShapeError(f"{what}: {error}{aliases(there)}") from None
    fill(what, signature, sizes, options)
    if unseen := [name for name in signature.sizes if name not in sizes]:
        raise ConfigError(f"{what}: no tensor shows {', '.join(unseen)}; give it by name")
    missing = [s for s in signature.specs if s.written and s.name not in tensors]
    outputs = {s.name: _made(s, sizes, alike) for s in missing if not s.nullable}
    if width and "y" in outputs:
        outputs["y"] = there["x"].shape
    return Solved(
        {name: sizes[name] for name in signature.sizes},
        {name: options[name] for name in signature.options},
        outputs,
    )


def aliases(tensors: Tensors) -> str:
    """Return the tensors that have other names than their parameters: " (x is flat)"."""
    called = ", ".join(f"{k} is {t.name}" for k, t in tensors.items() if t and t.name != k)
    return f" ({called})" if called else ""


def _seen(spec: TensorSpec, shape: Shape, width: int) -> tuple[TensorSpec, Shape]:
    """Return a spec and a shape with equally many extents, so that they can be compared."""
    if spec.extents == ("n",):
        return spec, (prod(shape),)
    if spec.extents == ("1",) and not shape:
        return spec, (1,)
    if spec.row and len(shape) == 2:
        return replace(spec, extents=(spec.extents[0], spec.row)), shape
    if len(shape) == 2 < len(spec.extents):
        columns = "*".join(f"({extent})" for extent in spec.extents[1:])
        return replace(spec, extents=(spec.extents[0], columns)), shape
    if width and len(shape) == len(spec.extents) == 2 and shape[1] % width == 0:
        return spec, (prod(shape) // width, width)
    return spec, shape


def _made(spec: TensorSpec, sizes: Mapping[str, int], alike: Shape | None) -> Shape:
    """Return the shape of a tensor to make; a saved tensor keeps all its axes."""
    if spec.extents == ("n",) and alike is not None:
        return alike
    if spec.extents == ("1",):
        return ()
    shape = spec.shape(sizes)
    return shape if spec.saved or len(shape) < 3 else (shape[0], prod(shape[1:]))


def _alike(signature: Signature, there: Mapping[str, Tensor]) -> Shape | None:
    """Return the common shape of all tensors x[n]; None without such tensors."""
    specs = [s for s in signature.specs if s.extents == ("n",) and s.name in there]
    specs.sort(key=lambda spec: spec.written)
    for spec in specs[1:]:
        first, shape = there[specs[0].name].shape, there[spec.name].shape
        if shape != first:
            raise Unsolved(
                f"{spec} needs shape {first}, as {specs[0].name} has; got {spec.name} {shape}"
            )
    return there[specs[0].name].shape if specs else None


def _check_columns(
    signature: Signature, there: Mapping[str, Tensor], sizes: Mapping[str, int]
) -> None:
    """Raise Unsolved if a row is shorter than what the kernel reads."""
    for spec in signature.specs:
        if spec.row and spec.name in there:
            columns = evaluate(spec.formulas[-1], sizes)
            if columns > sizes[spec.row]:
                shape = there[spec.name].shape
                raise Unsolved(f"{spec} needs {columns} columns; got {spec.name} {shape}")


def _typed(
    signature: Signature, there: Mapping[str, Tensor]
) -> Iterable[tuple[TensorSpec, Tensor]]:
    """Yield the matrices whose element type is a size of the kernel."""
    return ((s, there[s.name]) for s in signature.specs if s.kind == "type" and s.name in there)


def fill(what: str, signature: Signature, sizes: dict[str, int], options: dict[str, Any]) -> None:
    """Add missing sizes and options from their defaults. Raises ConfigError if there is none."""
    for name in signature.arguments:
        values = options if name in signature.options else sizes
        if name in values:
            continue
        if name not in signature.defaults:
            raise ConfigError(f"{what}: needs {name}; its signature is {signature}")
        values[name] = _number(what, name, signature.default(name, sizes))


def _number(what: str, name: str, value: Any) -> Any:
    """Return a size or an option as a number: words have numbers, switches are 0 or 1."""
    if not isinstance(value, str):
        return int(value) if isinstance(value, bool) else value
    if value not in WORDS.get(name, {}):
        words = ", ".join(WORDS.get(name, {}))
        raise ConfigError(f"{what}: {name} needs one of {words}; got {value!r}")
    return WORDS[name][value]
