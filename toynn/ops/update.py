"""Segment U: the norm of all gradients, and AdamW."""

from toynn import checks
from toynn._kernels.grad_norm import ELEMENTS_PER_PARTIAL
from toynn.ops._shape import Recorder, flops, require
from toynn.tape import Op, Tensor

__all__ = ["adamw_step", "grad_norm"]


def grad_norm(s: Recorder, norm: Tensor, factor: Tensor, every: Tensor, control: Tensor) -> None:
    """Record the norm of all gradients, and the factor by which AdamW is to multiply them.

    control (2,): the norm to clip to (0: do not), and one over the weight of all micro-batches.
    """
    partial = s.tape.new("partial", (-(-every.size // ELEMENTS_PER_PARTIAL),))
    s.tape.record(GRAD_NORM, [norm, factor], [partial], [every, control], {"n": every.size})


def adamw_step(
    s: Recorder, w: Tensor, m: Tensor, v: Tensor, g: Tensor, hp: Tensor, factor: Tensor
) -> None:
    """Record one AdamW update of w, m and v in place; g is first multiplied by ``factor`` ()."""
    require(w.shape == g.shape and hp.shape == (7,), "adamw", "g like w, hp (7,)", w, g, hp)
    s.tape.checks.setdefault(hp, [checks.finite])
    s.tape.record(ADAMW, [w, m, v], [], [g, hp, factor], {"n": w.size})


GRAD_NORM = Op("grad_norm.forward", flops(2, "n"), updates=True)
ADAMW = Op("adamw.step", flops(13, "n"), updates=True)
