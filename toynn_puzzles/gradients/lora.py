"""LoRA: a frozen product plus a low-rank one."""

from typing import Any

import numpy as np

from toynn.backends.reference import KERNELS
from toynn_puzzles.answer import Answer
from toynn_puzzles.compare import Expected
from toynn_puzzles.puzzle import Puzzle


def check(answer: Answer) -> None:
    """Compare dx, da and db; w is frozen."""
    rng = np.random.default_rng(0)
    N, K, M, R, scale = 5, 4, 6, 2, 1.5
    shapes = {"x": (N, K), "w": (M, K), "a": (R, K), "b": (M, R)}
    arrays = {name: rng.standard_normal(shape) for name, shape in shapes.items()}
    x, w, a, b = arrays.values()
    dy = rng.standard_normal((N, M))

    def product(x: Any, w: Any) -> Any:
        return KERNELS["matmul.forward"].compute(x=x, w=w, b=None, activation=0)["y"]

    u = product(x, a)
    du = scale * product(dy, b.T)
    right = {
        "dx": product(dy, w.T) + product(du, a.T),
        "da": KERNELS["matmul.backward_weight"].compute(dy=du, x=x)["dw"],
        "db": KERNELS["matmul.backward_weight"].compute(dy=scale * dy, x=u)["dw"],
    }
    case = Expected(
        arrays,
        lambda: product(x, w) + scale * product(product(x, a), b),
        dy,
        right,
        {"R": R, "N": N},
    )
    case.compare(
        answer.several("backward", "dx, da, db", dy, x, w, a, b, scale),
        dx={
            "only the frozen w's part: the adapter reads x, too.": dy @ w,
            "only the adapter's part: the frozen w passes a gradient to x, too.": du @ a,
            "scale is missing in the adapter's part.": dy @ w + dy @ b @ a,
        },
        da={
            "scale is missing.": right["da"] / scale,
            "scale is applied twice.": right["da"] * scale,
        },
        db={
            "scale is missing.": right["db"] / scale,
            "scale is applied twice.": right["db"] * scale,
        },
    )


PUZZLE = Puzzle(
    title="LoRA",
    wanted="""\
Return dx, da and db. x is (N, K), w (M, K), a (R, K), b (M, R), y and dy are (N, M).
scale is a number. w is frozen: its gradient is not wanted.""",
    formula="y = x w^T + scale (x a^T) b^T",
    code="""
def backward(dy, x, w, a, b, scale):
    # >>>
    u = x @ a.T
    du = scale * dy @ b
    dx = dy @ w + du @ a
    da = du.T @ x
    db = scale * dy.T @ u
    # <<<
    return dx, da, db
""",
    hints=(
        "Call u = x a^T (N, R). Then y = x w^T + scale u b^T: two linear layers, one after the "
        "other, beside a frozen one (puzzle 1).",
        "db comes from dy and u, and du = scale dy b. da comes from du and x.",
        "x goes into both products, so dx is the sum of both gradients: dy w + du a.",
    ),
    why=(
        "B begins at 0, so that training begins at the base model. Why must A not begin at 0, too?",
        "dA is a multiple of B, and dB one of A x. With both at 0 no gradient would ever be "
        "other than 0.",
    ),
    same="nn/lora.py",
    check=check,
)
