"""A linear layer with a low-rank adapter beside its matrix.

    LoRA     y = x W^T + b + s (x' A^T) B^T                       x' = dropout(x)
    PiSSA    y = x W^T + b + s ((x' A^T) B^T - (x' A0^T) B0^T)    A0, B0: what A and B began with
    DoRA     y = m / |W + s B A| (x W^T + s (x' A^T) B^T) + b     of each output, norms constant

W (out, in), A and A0 (r, in), B and B0 (out, r), m (out,).
Sources: Hu et al. 2021, LoRA, arXiv:2106.09685, section 4; Meng et al. 2024, PiSSA,
arXiv:2404.02948; Liu et al. 2024, DoRA, arXiv:2402.09353.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from toynn import ops
from toynn.graph.tape import Tensor
from toynn.session import Session

__all__ = ["LoRA", "Magnitude", "linear"]


@dataclass(frozen=True)
class Magnitude:
    """What DoRA trains beside A and B, and what it needs of the matrix."""

    m: Tensor  # (out,)
    squares: Tensor  # (out,): of the norms of W's rows
    inverse: Tensor  # (out,): one over the norms of W + s B A, as they were taken last


@dataclass(frozen=True)
class LoRA:
    """What is added to a matrix W (out, in), or to each of a stack: ``scale`` B A, of rank r."""

    a: Tensor  # (r, in), or (E, r, in)
    b: Tensor  # (out, r), or (E, out, r)
    scale: float
    start: tuple[Tensor, Tensor] | None = None  # A0 and B0, where these are taken away
    magnitude: Magnitude | None = None

    def products(self, s: Session, x: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        """Record x (N, in) seen through A, scaled; yield it with B: their product is added."""
        # Scaled here, where the numbers are fewest.
        yield _scaled(s, ops.linear(s, x, self.a), self.scale), self.b
        if self.start is not None:
            a, b = self.start
            yield _scaled(s, ops.linear(s, x, a), -self.scale), b

    def inverse_norms(self, s: Session, w: Tensor) -> Tensor:
        """Record one over the norms (out,) of the rows of W + s B A, which is not made for it."""
        assert self.magnitude is not None
        p, g = ops.linear(s, self.a, w), ops.linear(s, self.a, self.a)
        return ops.dora_norms(s, self.magnitude.squares, p, g, self.b, self.scale)


def _scaled(s: Session, x: Tensor, factor: float) -> Tensor:
    return x if factor == 1 else ops.scale(s, x, factor)


def linear(
    s: Session,
    x: Tensor,
    w: Tensor,
    b: Tensor | None = None,
    activation: str | None = None,
    adapter: LoRA | None = None,
    seen: Tensor | None = None,
    *,
    measured: bool = False,
) -> Tensor:
    """Record f(x w^T + b) for x (M, in), w (out, in), b (out,); f as in ops.linear.

    What an adapter adds to w comes before f; it sees x, or what is given as ``seen``. Norms that
    were ``measured`` before are not recomputed.
    """
    if adapter is None:
        return ops.linear(s, x, w, b, activation)
    own = adapter.magnitude
    y = ops.linear(s, x, w, None if own else b)
    for low, right in adapter.products(s, x if seen is None else seen):
        y = ops.add(s, y, ops.linear(s, low, right))
    if own is not None:
        r = own.inverse if measured else adapter.inverse_norms(s, w)
        y = ops.dora(s, y, own.m, r, b)
    return y if activation is None else ops.gelu(s, y, activation)
