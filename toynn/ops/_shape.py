"""Helpers of the recording functions: shape rules, counts, handles."""

from collections.abc import Callable, Mapping
from math import prod
from typing import Protocol

from toynn.errors import ShapeError
from toynn.graph.autograd import Backward
from toynn.graph.sizes import aliases
from toynn.graph.tape import Node, Op, Tape, Tensor
from toynn.numerics import dtypes

#: Flops of exp_ in _common.pxd: 9 multiply-adds, 5 more of either kind.
EXP = 23
#: Flops of sigmoid_slope_ there: an exponential, e + 1, 1 / (e + 1), e q q and e q.
SIGMOID_SLOPE = EXP + 5

Sizes = Mapping[str, int]
Rule = Callable[[Backward, Node, Tensor], None]


class Recorder(Protocol):
    """The object that an op records on: a Session."""

    tape: Tape
    seed: int
    matmul_precision: str
    by_row: bool


def product_precision(s: Recorder, w: Tensor | None = None) -> str:
    """Return the precision of a product by ``w``: "int8" is for quantized w alone."""
    in_blocks = w is not None and dtypes.DTYPES[w.dtype].elements > 1
    precision = "medium" if s.matmul_precision == "int8" and not in_blocks else s.matmul_precision
    return f"{precision} by row" if s.by_row else precision


def flops(factor: int, *names: str) -> Callable[[Sizes], int]:
    """Count ``factor`` times the product of the named sizes."""
    return lambda sizes: factor * prod(map(sizes.__getitem__, names))


def require(condition: bool, op: str, needed: str, /, **got: Tensor | None) -> None:
    """Raise ShapeError unless a condition holds; ``got`` are tensors by the op's parameters."""
    if not condition:
        shown = ", ".join(f"{name} {t.shape if t else None}" for name, t in got.items())
        raise ShapeError(f"{op}: needs {needed}; got {shown}{aliases(got)}")


def matrix(op: str, /, **named: Tensor) -> tuple[int, int]:
    """Return the shape of a tensor, by the op's parameter, that must be a matrix."""
    (x,) = named.values()
    require(len(x.shape) == 2, op, "a matrix (N, C)", **named)
    return x.shape[0], x.shape[1]


def itself(node: Node) -> Node:
    """For Op.recompute: run the node again, whose backward reads all of its inputs anyway."""
    return node


def by_names(backward: Op) -> Rule:
    """Return the rule of an op whose backward kernel has the same names, with a d for gradients.

    ``dy`` is the gradient of the op's first output. The backward may read any tensor of the op. It
    writes the gradients of inputs: ``dx`` for ``x``.
    """

    def rule(back: Backward, node: Node, dy: Tensor) -> None:
        tensors = {**node.named, f"d{node.op.signature.outputs[0]}": dy}
        back.emit(
            backward,
            {name: tensors[name.removeprefix("d")] for name in backward.signature.outputs},
            {name: tensors[name] for name in backward.signature.inputs},
            node,
        )

    return rule
