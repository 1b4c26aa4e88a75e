"""SwiGLU, backward: a product of two inputs, one of them through silu."""

import numpy as np

from toynn_puzzles.answer import Answer
from toynn_puzzles.compare import expected, fail
from toynn_puzzles.puzzle import Puzzle


def check(answer: Answer) -> None:
    """Compare both gradients; some gates are large, where exp(-gate) overflows."""
    case = expected("swiglu", N=4, F=5)
    gate, up, dy = case.inputs["gate"], case.inputs["up"], case.dy
    s = 1 / (1 + np.exp(-gate))
    case.compare(
        answer.several("backward", "dgate, dup", dy, gate, up),
        dgate={
            "that is the gradient of the sigmoid alone; silu(gate) is gate times the sigmoid.": dy
            * up
            * s
            * (1 - s),
            "the slope of the sigmoid is missing: it depends on gate, too.": dy * up * s,
            "up is missing: silu(gate) is multiplied by it.": dy * s * (1 + gate * (1 - s)),
        },
        dup={
            "the sigmoid of gate, where silu(gate) = gate sigmoid(gate) is wanted.": dy * s,
            "gate alone, where silu(gate) is wanted.": dy * gate,
        },
    )
    far = np.array([-1000.0, 1000.0])
    for name, gradient in answer.several(
        "backward", "dgate, dup", np.ones(2), far, np.ones(2)
    ).items():
        if not np.isfinite(gradient).all():
            fail(
                f"{name} is {np.asarray(gradient).tolist()} for gate = [-1000, 1000].",
                "exp(1000) is infinite, and infinity / infinity or 0 times infinity is nan. "
                "1 / (1 + exp(-gate)) is safe: it becomes 0.",
            )


PUZZLE = Puzzle(
    title="SwiGLU, backward",
    wanted="""\
Return dgate and dup from dy, gate and up. All arrays have the same shape. Element i of y depends
only on element i of gate and up. gate may be -1000 or 1000: no gradient may become nan.""",
    formula="""\
y = silu(gate) up
silu(g) = g s(g)          s(g) = 1 / (1 + exp(-g)); the slope of s is s (1 - s)""",
    code="""
import numpy as np


def backward(dy, gate, up):
    # >>>
    s = 1 / (1 + np.exp(-gate))
    dgate = dy * up * s * (1 + gate * (1 - s))
    dup = dy * gate * s
    # <<<
    return dgate, dup
""",
    hints=(
        "y is a product. dup is dy times the other factor.",
        "silu(g) = g s(g) is a product, too: its slope is s(g) + g s'(g).",
        "dgate = dy up (s + gate s (1 - s)).",
    ),
    why=(
        "Why may a program compute the sigmoid again here, and not keep it?",
        "To keep it costs a write and a read of memory for each element. An exp takes about as "
        "long, and no memory.",
    ),
    same="_kernels/activations/swiglu.pyx",
    check=check,
)
