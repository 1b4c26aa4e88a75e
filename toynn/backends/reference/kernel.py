"""A kernel of the reference backend: a function of named arrays.

    @kernel("rmsnorm.forward")
    def rmsnorm(x, w, eps):
        return {"y": ..., "r": ...}

The function takes the tensors, sizes and options of a call that it names; floats come as float64.
It returns the tensors that it writes. It is plain NumPy, and useful without a tape. Its arguments
have no types: the kernel's signature, in the .pyx file, has the types and shapes of all tensors,
and says to which of them the kernel adds.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from inspect import signature
from typing import Any

import numpy as np
from numpy.typing import NDArray

import toynn._kernels as kernels
from toynn._kernels.base.signature import Signature
from toynn.backends.host import Layout, View
from toynn.backends.protocol import ELEMENTS
from toynn.numerics import dtypes

__all__ = ["KERNELS", "Array", "Kernel", "Layout", "Outputs", "View", "kernel"]

Array = NDArray[Any]
Outputs = dict[str, Array]

_NAMED = {dtype.ggml: name for name, dtype in dtypes.DTYPES.items()}


@dataclass(frozen=True)
class Kernel:
    """A function of the reference backend and the signature of its kernel."""

    compute: Callable[..., Outputs]
    signature: Signature
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
        """Compute in float64; write the results, rounded to the type of the views.

        All outputs are computed before any is written, since an output may share an input's memory.
        """
        values: dict[str, Any] = {**sizes, **options}
        for name in self.signature.tensors:
            if name in self.takes:
                values[name] = _wide(view(name, self._layout(name, sizes)))
        with np.errstate(all="ignore"):
            outputs = self.compute(**{name: values[name] for name in self.takes})
            for name, value in outputs.items():
                target = view(name, self._layout(name, sizes))
                if target is not None:
                    old = target if accumulate and name in self.signature.adds else 0
                    target[...] = value + old

    def _layout(self, name: str, sizes: Mapping[str, int]) -> Layout:
        spec = self.signature[name]
        kind = spec.kind if spec.kind in ELEMENTS else _NAMED[sizes[spec.kind]]
        return Layout(kind, spec.shape(sizes), sizes[spec.row] if spec.row else None)


def _wide(array: Array | None) -> Array | None:
    return array.astype(np.float64) if array is not None and array.dtype.kind == "f" else array


#: All kernels of the reference backend, by the names in launches ("rmsnorm.forward"). Each module
#: of this package adds its own.
KERNELS: dict[str, Kernel] = {}


def kernel(name: str) -> Callable[[Callable[..., Outputs]], Callable[..., Outputs]]:
    """Add a function to KERNELS, under the name of a kernel."""

    def enter(compute: Callable[..., Outputs]) -> Callable[..., Outputs]:
        KERNELS[name] = Kernel(compute, kernels.find(name).signature)
        return compute

    return enter
