"""What the recording functions have in common: shape rules, counts, handles."""

from collections.abc import Callable, Mapping
from math import prod
from typing import Protocol

from toynn.autograd import Backward
from toynn.errors import ShapeError
from toynn.tape import Node, Tape, Tensor

__all__ = ["Recorder", "Rule", "Sizes", "flops", "given", "itself", "matrix", "require"]


Sizes = Mapping[str, int]
Rule = Callable[[Backward, Node, Tensor], None]


class Recorder(Protocol):
    """What an op records on: a Session."""

    tape: Tape
    seed: int
    matmul_precision: str


def flops(factor: int, *names: str) -> Callable[[Sizes], int]:
    """Count ``factor`` times the product of the named sizes."""
    return lambda sizes: factor * prod(sizes[name] for name in names)


def require(condition: bool, op: str, needed: str, *got: Tensor | None) -> None:
    if not condition:
        shown = ", ".join("None" if t is None else f"{t.name} {t.shape}" for t in got)
        raise ShapeError(f"{op}: needs {needed}; got {shown}")


def matrix(op: str, x: Tensor) -> tuple[int, int]:
    require(len(x.shape) == 2, op, "a matrix (N, C)", x)
    return x.shape[0], x.shape[1]


def itself(node: Node) -> Node:
    """For Op.again: all that the node reads is read by its backward too."""
    return node


def given(tensor: Tensor | None) -> Tensor:
    assert tensor is not None
    return tensor
