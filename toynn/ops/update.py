"""Segment U: the norm of all gradients, and AdamW."""

from toynn.graph.tape import Op, Tensor
from toynn.numerics.adamw_row import check_row
from toynn.ops._shape import Recorder, flops

__all__ = ["adamw_step", "grad_norm"]


def grad_norm(s: Recorder, norm: Tensor, factor: Tensor, every: Tensor, control: Tensor) -> None:
    """Record the norm of all gradients, and the factor that AdamW multiplies them by.

    control (2,): the norm to clip to (0: no clipping), and 1 / (sum of the micro-batches' weights).
    """
    tensors = {"norm": norm, "scale": factor, "g": every, "control": control}
    s.tape.record(GRAD_NORM, tensors)


def adamw_step(
    s: Recorder, w: Tensor, m: Tensor, v: Tensor, g: Tensor, hp: Tensor, factor: Tensor
) -> None:
    """Record one AdamW update of w, m and v in place; g is first multiplied by ``factor`` ()."""
    s.tape.record(ADAMW, {"w": w, "m": m, "v": v, "g": g, "hp": hp, "scale": factor})
    s.tape.checks.setdefault(hp, [check_row])


GRAD_NORM = Op("grad_norm.forward", flops(2, "n"), updates=True)
ADAMW = Op("adamw.step", flops(16, "n"), updates=True)
