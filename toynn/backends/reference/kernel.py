"""What a kernel of the reference is: a function of named arrays, and the shapes of its tensors.

    @kernel("rmsnorm.forward", y="N C", r="N", x="N C", w="C")
    def rmsnorm(x, w, eps):
        return {"y": ..., "r": ...}

The function takes what it names of the tensors, sizes and options of a call, floats as float64,
and returns the tensors that it writes. It is plain NumPy, and of use without any tape.

A shape is a row of extents: numbers, sizes by name, products of them ("B*T"), one less ("T-1"), one
more ("E+1"), a half ("D/2"), one more than twice as many ("S*2+1"). In front of it may stand i32,
or blocks: a matrix of the type that the size "type" says. Behind it, "@ldq": the rows lie ldq
elements apart.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from inspect import signature
from math import prod
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from toynn import dtypes

__all__ = ["KERNELS", "Array", "Kernel", "Layout", "Outputs", "View", "kernel"]

Array = NDArray[Any]
Outputs = dict[str, Array]

_NAMED = {dtype.ggml: name for name, dtype in dtypes.DTYPES.items()}


class Layout(NamedTuple):
    """How a kernel sees a tensor: its type, its shape, and the elements from row to row."""

    dtype: str
    shape: tuple[int, ...]
    row: int | None  # None: the rows lie side by side


#: Gives a kernel a tensor by name in a layout, writable; None for one that is left out.
View = Callable[[str, Layout], Array | None]


@dataclass(frozen=True)
class Kernel:
    """A function of the reference and the layouts of its tensors."""

    compute: Callable[..., Outputs]
    shapes: Mapping[str, str]
    adds: tuple[str, ...] = ()  # outputs to which it adds when told to accumulate
    takes: tuple[str, ...] = field(init=False)  # tensors, sizes and options, by name

    def __post_init__(self) -> None:
        object.__setattr__(self, "takes", tuple(signature(self.compute).parameters))

    def run(
        self,
        view: View,
        sizes: Mapping[str, int],
        options: Mapping[str, float],
        accumulate: bool = False,
    ) -> None:
        """Compute in float64; write the results, rounded to what the views hold.

        Everything is computed before anything is written: an output may lie where an input does.
        """
        given: dict[str, Any] = {**sizes, **options}
        for name in self.shapes:
            if name in self.takes:
                given[name] = _wide(view(name, self._layout(name, sizes)))
        with np.errstate(all="ignore"):
            outputs = self.compute(**{name: given[name] for name in self.takes})
            for name, value in outputs.items():
                target = view(name, self._layout(name, sizes))
                if target is not None:
                    old = target if accumulate and name in self.adds else 0
                    target[...] = value + old

    def _layout(self, name: str, sizes: Mapping[str, int]) -> Layout:
        dtype, row = "f32", None
        words = self.shapes[name].split()
        if words[0] in ("i32", "blocks"):
            dtype = "i32" if words.pop(0) == "i32" else _NAMED[sizes["type"]]
        if words[-1].startswith("@"):
            row = sizes[words.pop()[1:]]
        return Layout(dtype, tuple(_extent(word, sizes) for word in words), row)


def _extent(word: str, sizes: Mapping[str, int]) -> int:
    def term(text: str) -> int:
        if text.isdigit():
            return int(text)
        if text.endswith("-1"):
            return sizes[text.removesuffix("-1")] - 1
        if text.endswith("+1"):
            return sizes[text.removesuffix("+1")] + 1
        return sizes[text.removesuffix("/2")] // (2 if text.endswith("/2") else 1)

    if word.endswith("*2+1"):
        return 2 * term(word.removesuffix("*2+1")) + 1
    return prod(term(text) for text in word.split("*"))


def _wide(array: Array | None) -> Array | None:
    return array.astype(np.float64) if array is not None and array.dtype.kind == "f" else array


#: All kernels of the reference, by the names that launches give: "rmsnorm.forward".
KERNELS: dict[str, Kernel] = {}


def kernel(
    name: str, *, adds: str = "", **shapes: str
) -> Callable[[Callable[..., Outputs]], Callable[..., Outputs]]:
    """Enter a function into the table; the shapes are those of all tensors of the kernel.

    ``adds``: names of the outputs to which it adds when told to accumulate.
    """

    def enter(compute: Callable[..., Outputs]) -> Callable[..., Outputs]:
        KERNELS[name] = Kernel(compute, shapes, tuple(adds.split()))
        return compute

    return enter
