"""DoRA: the norms of adapted matrices, and trained magnitudes that replace them."""

from toynn.graph.autograd import Backward
from toynn.graph.tape import Node, Op, Tensor
from toynn.ops._shape import Recorder, flops
from toynn.ops.linear import BIAS_BACKWARD


def dora_norms(
    s: Recorder, squares: Tensor, p: Tensor, g: Tensor, b: Tensor, scale: float
) -> Tensor:
    """Record r (C,): one over the norms of the rows of W + scale b a.

    squares (C,) are the squared norms of W's rows; p (R, C) = a W^T; g (R, R) = a a^T; b (C, R).
    r is a constant of the backward pass: no gradient flows through it.
    """
    tensors = {"squares": squares, "p": p, "g": g, "b": b}
    return s.tape.record(NORMS, tensors, scale=scale).output


def dora(s: Recorder, x: Tensor, m: Tensor, r: Tensor, bias: Tensor | None = None) -> Tensor:
    """Record y (N, C) = x m r + bias, channel by channel; r is a constant of the backward pass."""
    return s.tape.record(DORA, {"x": x, "m": m, "r": r, "bias": bias}).output


def _dora_gradient(back: Backward, node: Node, dy: Tensor) -> None:
    x, m, bias = node["x"], node["m"], node.named["bias"]
    read = {"dy": dy, "x": x, "m": m, "r": node["r"]}
    back.emit(DORA_BACKWARD, {"dx": x, "dm": m}, read)
    back.emit(BIAS_BACKWARD, {"db": bias}, {"dy": dy})


NORMS = Op(
    "dora.norms",
    lambda sizes: sizes["C"] * (2 * sizes["R"] * (sizes["R"] + 2) + 6),
    name="inverse_norms",
)
DORA_BACKWARD = Op("dora.backward", flops(4, "N", "C"), rows="N dy")
DORA = Op("dora.forward", flops(3, "N", "C"), _dora_gradient, rows="N x")
