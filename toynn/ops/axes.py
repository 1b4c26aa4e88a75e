"""What changes shapes: sums over axes, other shapes, slices, and products of matrices in a batch.

An axis that a kernel works on stands between A numbers in front of it and B behind it. So kernels
get views (``Tensor.view``) of two to four axes, whatever the shape is.
"""

from collections.abc import Iterator, Sequence
from itertools import pairwise
from math import prod
from typing import Any

import numpy as np

from toynn.errors import ShapeError
from toynn.graph.autograd import Backward
from toynn.graph.tape import Node, Op, Tensor
from toynn.ops._shape import Recorder, flops, product_precision, require
from toynn.ops.elementwise import COLUMNS
from toynn.ops.experts import EXPERTS_BACKWARD_INPUT, MOST_ROWS
from toynn.ops.linear import LINEAR_BACKWARD_INPUT

Shape = tuple[int, ...]


def sum(
    s: Recorder, x: Tensor, axis: int | Sequence[int] | None = None, *, keepdims: bool = False
) -> Tensor:
    """Record the sum of x over one axis, several, or all; with ``keepdims`` they stay, as 1.

    Raises ShapeError for an axis that x lacks.
    """
    return _summed(s, "sum", x, axis, keepdims)


def mean(
    s: Recorder, x: Tensor, axis: int | Sequence[int] | None = None, *, keepdims: bool = False
) -> Tensor:
    """Record the mean of x over one axis, several, or all; with ``keepdims`` they stay, as 1.

    Raises ShapeError for an axis that x lacks.
    """
    return _summed(s, "mean", x, axis, keepdims)


def _summed(
    s: Recorder, what: str, x: Tensor, axis: int | Sequence[int] | None, keepdims: bool
) -> Tensor:
    axes = _axes(what, x, axis)
    kept = tuple(1 if i in axes else n for i, n in enumerate(x.shape))
    alpha = 1.0 if what == "sum" else 1 / max(1, prod(x.shape[i] for i in axes))
    for first, last in reversed(list(_runs(axes))):
        shape = x.shape
        A, N, B = prod(shape[:first]), prod(shape[first:last]), prod(shape[last:])
        y = s.tape.new(what, shape[:first] + shape[last:])
        tensors = {"y": y.view((A, B)), "x": x.view((A, N, B))}
        s.tape.record(SUM, tensors, alpha=alpha if first == axes[0] else 1.0)
        x = y
    return x.view(kept) if keepdims else x


def _sum_gradient(back: Backward, node: Node, dy: Tensor) -> None:
    back.emit(EXPAND, {"y": node["x"]}, {"x": dy}, node)


def _expand_gradient(back: Backward, node: Node, dy: Tensor) -> None:
    back.emit(SUM, {"y": node["x"]}, {"x": dy}, node)


def broadcast(s: Recorder, what: str, *tensors: Tensor, to: Shape | None = None) -> list[Tensor]:
    """Record copies of tensors in one shape, by NumPy's rules; ``to`` is a shape of another array.

    Raises ShapeError, which names all shapes, if they do not broadcast, or not to ``to``.
    """
    shapes = [t.shape for t in tensors]
    try:
        shape = np.broadcast_shapes(*shapes, to or ())
    except ValueError:
        shape = ()
    if (to is not None and shape != to) or any(len(each) > len(shape) for each in shapes):
        shown = ", ".join(f"{t.name} {t.shape}" for t in tensors)
        raise ShapeError(
            f"{what}: needs shapes that broadcast{f' to {to}' if to else ''}, axis by axis from "
            f"the last: equal, or 1; got {shown}"
        )
    return [_expanded(s, t, shape) for t in tensors]


def _expanded(s: Recorder, x: Tensor, shape: Shape) -> Tensor:
    x = x.view((1,) * (len(shape) - len(x.shape)) + x.shape)
    for first, last in _runs([i for i, n in enumerate(shape) if x.shape[i] != n]):
        A, N, B = prod(x.shape[:first]), prod(shape[first:last]), prod(x.shape[last:])
        y = s.tape.new("expand", x.shape[:first] + shape[first:last] + x.shape[last:])
        s.tape.record(EXPAND, {"y": y.view((A, N, B)), "x": x.view((A, B))})
        x = y
    return x


def reshape(s: Recorder, x: Tensor, shape: int | Sequence[int]) -> Tensor:
    """Return x in another shape of as many elements; one extent may be -1. No copy, no node.

    Raises ShapeError for another number of elements.
    """
    asked = (shape,) if isinstance(shape, int) else tuple(shape)
    rest = -prod(asked)
    free = asked.count(-1) == 1 and rest > 0 and x.size % rest == 0
    extents = tuple(x.size // rest if n == -1 and free else n for n in asked)
    fits = prod(extents) == x.size and all(n >= 0 for n in extents)
    require(fits, "reshape", f"a shape of {x.size} elements, not {asked}", x=x)
    return x.view(extents)


def transpose(s: Recorder, x: Tensor, *axes: int) -> Tensor:
    """Record a copy of x with its axes in this order; without ``axes``, in reverse.

    Raises ShapeError unless ``axes`` has each axis of x once.
    """
    left = list(range(len(x.shape)))
    order = [i + len(left) * (i < 0) for i in axes] or left[::-1]
    require(sorted(order) == left, "transpose", f"each of {len(left)} axes, not {axes}", x=x)
    for i, axis in enumerate(order):
        j = left.index(axis)
        k = j + 1
        while k < len(left) and order[i + k - j] == left[k]:  # neighbours move together
            k += 1
        if i == j:
            continue
        parts = x.shape[:i], x.shape[j:k], x.shape[i:j], x.shape[k:]
        A, M, N, B = map(prod, parts)
        y = s.tape.new("transpose", parts[0] + parts[1] + parts[2] + parts[3])
        s.tape.record(TRANSPOSE, {"y": y.view((A, M, N, B)), "x": x.view((A, N, M, B))})
        x, left = y, left[:i] + left[j:k] + left[i:j] + left[k:]
    return x


def _transpose_gradient(back: Backward, node: Node, dy: Tensor) -> None:
    back.emit(TRANSPOSE, {"y": node["x"]}, {"x": dy})


def part(s: Recorder, x: Tensor, index: Any) -> Tensor:
    """Record a copy of a part of x: ``x[2:5]``, ``x[:, -1]``, ``x[..., 0:8]``. Steps are 1.

    Raises ShapeError for a part that x lacks, a part of nothing, and other kinds of indices.
    """
    words = list(index) if isinstance(index, tuple) else [index]
    if Ellipsis in words:
        at = words.index(Ellipsis)
        words[at : at + 1] = [slice(None)] * (len(x.shape) - len(words) + 1)
    kept = []
    for axis, word in enumerate([*words, *[slice(None)] * (len(x.shape) - len(words))]):
        whole, n = not isinstance(word, slice), x.shape[axis] if axis < len(x.shape) else 0
        first = word if isinstance(word, int) else -n - 1
        first, last, step = (first + n * (first < 0), 0, 1) if whole else word.indices(n)
        last = first + 1 if whole else last
        fits = step == 1 and 0 <= first < last <= n
        require(fits, "part", f"slices with step 1, or whole numbers, within it, not {index}", x=x)
        kept += [] if whole else [last - first]
        if last - first < n:
            A, B = prod(x.shape[:axis]), prod(x.shape[axis + 1 :])
            C = (last - first) * B
            y = s.tape.new("part", (*x.shape[:axis], last - first, *x.shape[axis + 1 :]))
            tensors = {"y": y.view((A, C)), "x": x.view((A, n * B))}
            s.tape.record(COLUMNS, tensors, C=C, K=first * B)
            x = y
    return x.view(tuple(kept))


def concat(s: Recorder, tensors: Sequence[Tensor], axis: int = 0) -> Tensor:
    """Record tensors one after the other, along an axis.

    Raises ShapeError unless their shapes are equal along all other axes.
    """
    require(len(tensors) > 0, "concat", "at least one tensor")
    (at,) = _axes("concat", tensors[0], axis)
    before, after = tensors[0].shape[:at], tensors[0].shape[at + 1 :]
    for x in tensors:
        fits = len(x.shape) > at and (x.shape[:at], x.shape[at + 1 :]) == (before, after)
        require(fits, "concat", f"equal shapes but for axis {at}", first=tensors[0], other=x)
    ends = np.cumsum([0, *(x.shape[at] for x in tensors)])
    A, B, whole = prod(before), prod(after), int(ends[-1])
    y = s.tape.new("concat", (*before, whole, *after))
    for x, (first, last) in zip(tensors, pairwise(map(int, ends)), strict=True):
        read = {"y": y.view((A, whole * B)), "x": x.view((A, (last - first) * B))}
        s.tape.record(PLACE, read, K=first * B)
    return y


def _place_gradient(back: Backward, node: Node, dy: Tensor) -> None:
    back.emit(COLUMNS, {"y": node["x"]}, {"x": dy}, node)


def matmul(s: Recorder, a: Tensor, b: Tensor) -> Tensor:
    """Record y (.., M, N) = a (.., M, K) b (.., K, N); axes in front broadcast, as in NumPy.

    A vector a counts as a row, a vector b as a column; that axis is then left out of y. It is the
    product that ``linear`` has for dx, in the session's ``matmul_precision``.

    Raises ShapeError for shapes that do not fit.
    """
    rows, columns = len(a.shape) > 1, len(b.shape) > 1
    fits = a.shape and b.shape and a.shape[-1] == b.shape[-1 - columns]
    require(bool(fits), "matmul", "a (.., M, K) and b (.., K, N)", a=a, b=b)
    a = a if rows else a.view((1, *a.shape))
    b = b if columns else b.view((*b.shape, 1))
    (M, K), N = a.shape[-2:], b.shape[-1]
    precision = product_precision(s, b)
    if len(b.shape) > 2:
        ahead = _ahead(a, b)
        (a,), (b,) = (
            broadcast(s, "matmul", a, to=(*ahead, M, K)),
            broadcast(s, "matmul", b, to=(*ahead, K, N)),
        )
        E = prod(ahead)
        require(E * M <= MOST_ROWS, "matmul", f"at most {MOST_ROWS} rows", a=a, b=b)
        offsets = s.tape.record(EVEN, {}, E=E, M=M).output
        y = s.tape.new("matmul", (*ahead, M, N))
        tensors = {"dx": y.view((E * M, N)), "dy": a.view((E * M, K)), "w": b.view((E, K, N))}
        s.tape.record(EXPERTS_BACKWARD_INPUT, tensors | {"offsets": offsets}, precision=precision)
    else:
        y = s.tape.new("matmul", (*a.shape[:-1], N))
        count = prod(a.shape[:-1])
        tensors = {"dx": y.view((count, N)), "dy": a.view((count, K)), "w": b}
        s.tape.record(LINEAR_BACKWARD_INPUT, tensors, precision=precision)
    shape = y.shape[:-2] + (M,) * rows + (N,) * columns
    return y.view(shape)


def _ahead(a: Tensor, b: Tensor) -> Shape:
    try:
        return np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    except ValueError:
        raise ShapeError(
            f"matmul: needs batches that broadcast; got {a.name} {a.shape}, {b.name} {b.shape}"
        ) from None


def _axes(what: str, x: Tensor, axis: int | Sequence[int] | None) -> list[int]:
    """Return axes in order, from 0 on. Raises ShapeError."""
    n = len(x.shape)
    asked = range(n) if axis is None else [axis] if isinstance(axis, int) else axis
    axes = sorted({i + n * (i < 0) for i in asked})
    fits = len(axes) == len(asked) and all(0 <= i < n for i in axes)
    require(fits, what, f"axes from {-n} to {n - 1}, each once, not {axis}", x=x)
    return axes


def _runs(axes: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Yield neighbouring axes together, as (first, last + 1)."""
    for k, axis in enumerate(axes):
        if not k or axes[k - 1] != axis - 1:
            last = axis + 1
            while last in axes:
                last += 1
            yield axis, last


EVEN = Op("expert_rows.even", flops(0, "E"))
SUM = Op("sums.forward", flops(1, "A", "N", "B"), _sum_gradient)
EXPAND = Op("sums.expand", flops(1, "A", "N", "B"), _expand_gradient)
TRANSPOSE = Op("transpose.forward", flops(0, "A"), _transpose_gradient)
PLACE = Op("columns.place", flops(0, "N", "C"), _place_gradient)
