"""A linear layer with a low-rank adapter beside its matrix.

    y = x W^T + b + s (dropout(x) A^T) B^T      W (out, in), A (r, in), B (out, r)

Source: Hu et al. 2021, LoRA, arXiv:2106.09685, section 4.
"""

from dataclasses import dataclass

from toynn import ops
from toynn.graph.tape import Tensor
from toynn.session import Session

__all__ = ["LoRA", "linear"]


@dataclass(frozen=True)
class LoRA:
    """What is added to a matrix W (out, in), or to each of a stack: ``scale`` B A, of rank r."""

    a: Tensor  # (r, in), or (E, r, in)
    b: Tensor  # (out, r), or (E, out, r)
    scale: float


def linear(
    s: Session,
    x: Tensor,
    w: Tensor,
    b: Tensor | None = None,
    activation: str | None = None,
    adapter: LoRA | None = None,
    seen: Tensor | None = None,
) -> Tensor:
    """Record f(x w^T + b) for x (M, in), w (out, in), b (out,); f as in ops.linear.

    What an adapter adds to w comes before f; it sees x, or what is given as ``seen``.
    """
    if adapter is None:
        return ops.linear(s, x, w, b, activation)
    low = ops.linear(s, x if seen is None else seen, adapter.a)  # (M, r)
    if adapter.scale != 1:  # here, where the numbers are fewest
        low = ops.scale(s, low, adapter.scale)
    y = ops.add(s, ops.linear(s, x, w, b), ops.linear(s, low, adapter.b))
    return y if activation is None else ops.gelu(s, y, activation)
