"""A linear layer with a low-rank adapter beside its matrix.

    LoRA     y = x W^T + b + s (x' A^T) B^T                       x' = dropout(x)
    PiSSA    y = x W^T + b + s ((x' A^T) B^T - (x' A0^T) B0^T)    A0, B0: what A and B began with
    DoRA     y = m / |W + s B A| (x W^T + s (x' A^T) B^T) + b     by row; no gradient of the norms

W (out, in), A and A0 (r, in), B and B0 (out, r), m (out,).
Sources: Hu et al. 2021, LoRA, arXiv:2106.09685, section 4; Meng et al. 2024, PiSSA,
arXiv:2404.02948; Liu et al. 2024, DoRA, arXiv:2402.09353.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from toynn import ops
from toynn.graph.tape import Tensor
from toynn.session import Session


@dataclass(frozen=True)
class Magnitude:
    """DoRA's magnitudes, which are trained like A and B, and the norms that they need."""

    m: Tensor  # (out,)
    squares: Tensor  # (out,): squared norms of W's rows
    inverse: Tensor  # (out,): 1 / norms of the rows of W + s B A, when they were last computed


@dataclass(frozen=True)
class LoRA:
    """An adapter of rank r: ``scale`` B A is added to W (out, in), or to each W of a stack."""

    a: Tensor  # (r, in), or (E, r, in)
    b: Tensor  # (out, r), or (E, out, r)
    scale: float
    start: tuple[Tensor, Tensor] | None = None  # A0 and B0 of PiSSA, whose product is subtracted
    magnitude: Magnitude | None = None

    def pairs(self) -> Iterator[tuple[Tensor, Tensor, float]]:
        """Yield A, B and the factor of each product B A that is added."""
        yield self.a, self.b, self.scale
        if self.start is not None:
            yield *self.start, -self.scale

    def products(self, s: Session, x: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        """Record s x A^T for x (N, in); yield it with B, by which the caller multiplies it."""
        # The scale is applied here because this array has the fewest numbers.
        for a, b, factor in self.pairs():
            yield scaled(s, ops.linear(s, x, a), factor), b

    def inverse_norms(self, s: Session, w: Tensor) -> Tensor:
        """Record 1 / norms (out,) of the rows of W + s B A without computing that matrix."""
        assert self.magnitude is not None
        p, g = ops.linear(s, self.a, w), ops.linear(s, self.a, self.a)
        return ops.dora_norms(s, self.magnitude.squares, p, g, self.b, self.scale)


def scaled(s: Session, x: Tensor, factor: float) -> Tensor:
    """Record x times a number; x itself for 1."""
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

    An adapter's product is added before f. Its input is ``seen``, or x if that is None.
    ``measured``: DoRA's norms are not recomputed; the last ones are used.
    """
    if adapter is None:
        return ops.linear(s, x, w, b, activation)
    dora = adapter.magnitude
    y = ops.linear(s, x, w, None if dora else b)
    for low, right in adapter.products(s, x if seen is None else seen):
        y = ops.add(s, y, ops.linear(s, low, right))
    if dora is not None:
        r = dora.inverse if measured else adapter.inverse_norms(s, w)
        y = ops.dora(s, y, dora.m, r, b)
    return y if activation is None else ops.gelu(s, y, activation)
