"""An op that is a function of NumPy, not a kernel: see toynn/ops/host.py."""

from collections.abc import Callable, Mapping
from typing import Any

from toynn._kernels.base.signature import Signature
from toynn.backends.host import HostFunction
from toynn.graph.tape import Node, Op
from toynn.graph.tensor import Tensor


def hosted(
    name: str,
    outputs: Mapping[str, Tensor],
    inputs: Mapping[str, Tensor],
    compute: Callable[..., Any],
    pure: bool,
    gradient: Callable[[Any, Node, Tensor], None] | None = None,
) -> Op:
    """Return the op of one node: its signature has the shapes of these tensors, as numbers."""
    written, read = (
        " ".join(f"{t.dtype} {n}[{' '.join(map(str, t.shape))}]" for n, t in part.items())
        for part in (outputs, inputs)
    )
    signature = Signature.parse(f"{written} <- {read}")
    function = HostFunction(f"ops.numpy {name}", signature, compute, pure)
    return Op(f"numpy.{name}", lambda sizes: 0, gradient, function=function)
