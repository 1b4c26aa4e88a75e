"""Segment U: the norm of all gradients, AdamW, and Muon."""

from dataclasses import replace
from typing import Any

from toynn.graph.tape import Op, Tensor
from toynn.numerics.adamw_row import check_row
from toynn.ops._shape import Recorder, flops, product_precision
from toynn.ops.arithmetic import SQUARE
from toynn.ops.axes import SUM
from toynn.ops.linear import LINEAR, LINEAR_BACKWARD_INPUT, LINEAR_BACKWARD_WEIGHT

#: The rounds of Newton-Schulz, and their coefficients: Jordan et al. 2024.
ROUNDS, (A, B, C) = 5, (3.4445, -4.775, 2.0315)


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


def muon_step(s: Recorder, w: Tensor, m: Tensor, g: Tensor, hp: Tensor, factor: Tensor) -> None:
    """Record one Muon update of the matrix w (R, C), and of its momentum m, in place.

    g is first multiplied by ``factor`` (). Products are in the session's ``matmul_precision``.
    """
    how: dict[str, Any] = {"precision": product_precision(s)}
    plain = {"pre": None, "b": None}

    def product(x: Tensor, w: Tensor) -> Tensor:
        return s.tape.record(PRODUCT, {"x": x, "w": w, **plain}, activation="none", **how).output

    wide = w.shape[0] <= w.shape[1]
    tensors = {"m": m, "g": g, "hp": hp, "scale": factor}
    u = s.tape.record(MOMENTUM, tensors)["u"]
    squares = s.tape.record(SQUARES, {"x": u}).output.view((1, w.size, 1))
    total = s.tape.record(TOTAL, {"x": squares}).output.view((1,))
    x = s.tape.record(START, {"u": u, "squares": total}).output
    for _ in range(ROUNDS):
        a = product(x, x) if wide else s.tape.record(GRAM, {"dy": x, "x": x}, **how).output
        p = s.tape.record(MIX, {"x": a, "z": product(a, a)}, alpha=B, beta=C).output
        moved = s.tape.record(PLAIN, {"dy": p, "w": x}, **how).output if wide else product(x, p)
        x = s.tape.record(MIX, {"x": x, "z": moved}, alpha=A, beta=1.0).output
    rate = 0.2 * max(w.shape) ** 0.5
    s.tape.record(STEP, {"w": w, "x": x, "hp": hp, "scale": factor}, factor=rate)
    s.tape.checks.setdefault(hp, [check_row])


GRAD_NORM = Op("grad_norm.forward", flops(2, "n"), updates=True)
ADAMW = Op("adamw.step", flops(16, "n"), updates=True)
MOMENTUM = Op("muon.momentum", flops(4, "n"), updates=True)
START = Op("muon.start", flops(1, "n"), updates=True, name="muon")
MIX = Op("muon.mix", flops(3, "n"), updates=True, name="muon")
STEP = Op("muon.step", flops(3, "n"), updates=True)
SQUARES, TOTAL, PRODUCT, PLAIN, GRAM = (
    replace(op, updates=True)
    for op in (SQUARE, SUM, LINEAR, LINEAR_BACKWARD_INPUT, LINEAR_BACKWARD_WEIGHT)
)
