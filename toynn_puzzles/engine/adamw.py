"""AdamW: two moments, their bias correction, and decoupled weight decay."""

import numpy as np

from toynn.backends.reference import KERNELS
from toynn_puzzles.answer import Answer
from toynn_puzzles.compare import compare
from toynn_puzzles.puzzle import Puzzle

LR, BETA1, BETA2, EPS, DECAY = 0.1, 0.9, 0.99, 1e-3, 0.5


def check(answer: Answer) -> None:
    """Compare w, m and v of the first and the third step with the reference."""
    rng = np.random.default_rng(0)
    w, g = rng.standard_normal((2, 5))
    for t in (1, 3):
        m, v = (np.zeros(5), np.zeros(5)) if t == 1 else (0.3 * g, rng.random(5))
        got = answer.several("step", "w, m, v", w, m, v, g, t, LR, BETA1, BETA2, EPS, DECAY)
        c1, c2 = 1 / (1 - BETA1**t), 1 / (1 - BETA2**t)

        def updated(
            g: object,
            c1: float,
            c2: float,
            decay: float,
            w: object = w,
            m: object = m,
            v: object = v,
        ) -> dict[str, np.ndarray]:
            hp = np.array([LR, BETA1, BETA2, EPS, decay, c1, c2])
            return KERNELS["adamw.step"].compute(w=w, m=m, v=v, g=g, hp=hp, scale=np.ones(1))

        right = updated(g, c1, c2, DECAY)
        plain = updated(g, c1, c2, 0.0)["w"]
        moved = (w - plain) / LR  # m' / (sqrt(v') + eps)
        where = f", in step {t}"
        compare(
            "m",
            got["m"],
            right["m"],
            where=where,
            suspects={
                "the decay went into the gradient. That is Adam with L2, not AdamW.": updated(
                    g + DECAY * w, c1, c2, 0.0
                )["m"],
                "(1 - beta1) is missing.": BETA1 * m + g,
            },
        )
        compare(
            "v",
            got["v"],
            right["v"],
            where=where,
            suspects={
                "g is not squared.": BETA2 * v + (1 - BETA2) * g,
                "beta1 is used where beta2 is wanted.": BETA1 * v + (1 - BETA1) * g * g,
            },
        )
        mean, square = right["m"] * c1, right["v"] * c2
        compare(
            "w",
            got["w"],
            right["w"],
            where=where,
            suspects={
                "the corrections are missing: m and v begin at 0, and are too small at first.": (
                    updated(g, 1.0, 1.0, DECAY)["w"]
                ),
                "m is not corrected: the third line has m', not m.": updated(g, 1.0, c2, DECAY)[
                    "w"
                ],
                "v is not corrected: the third line has v', not v.": updated(g, c1, 1.0, DECAY)[
                    "w"
                ],
                "the decay is missing.": plain,
                "the decay is not multiplied by lr.": w - DECAY * w - LR * moved,
                "eps stands under the root; it is added to the root.": w
                - LR * DECAY * w
                - LR * mean / np.sqrt(square + EPS),
                "the corrections are those of another step: t counts from 1.": (
                    updated(g, 1 / (1 - BETA1 ** (t + 1)), 1 / (1 - BETA2 ** (t + 1)), DECAY)["w"]
                ),
                "the step goes uphill: subtract it.": w - LR * DECAY * w + LR * moved,
            },
        )


PUZZLE = Puzzle(
    title="AdamW",
    wanted="""\
Return new arrays: w, m and v after one step of AdamW. All have the same shape as the gradient g.
t is the number of the step: 1 in the first, when m and v are 0. decay is the weight decay.""",
    formula="""\
m = beta1 m + (1 - beta1) g                 m' = m / (1 - beta1^t)
v = beta2 v + (1 - beta2) g^2               v' = v / (1 - beta2^t)
w = w - lr decay w - lr m' / (sqrt(v') + eps)""",
    code="""
import numpy as np


def step(w, m, v, g, t, lr, beta1, beta2, eps, decay):
    # >>>
    m = beta1 * m + (1 - beta1) * g
    v = beta2 * v + (1 - beta2) * g * g
    mean, square = m / (1 - beta1**t), v / (1 - beta2**t)
    w = w - lr * decay * w - lr * mean / (np.sqrt(square) + eps)
    # <<<
    return w, m, v
""",
    hints=(
        "Three lines of the formula, in this order. The new m and v are in the third line.",
        "m' and v' are used once; what is returned is m and v, uncorrected.",
        "`w -= ...` would change the array that you are given. Write w = w - ...",
    ),
    why=(
        "In step 1 every weight moves by about lr, whether its gradient is large or small. Why?",
        "Corrected, m is g and v is g^2, so m / sqrt(v) is the sign of g.",
    ),
    same="_kernels/weights/adamw.pyx",
    check=check,
)
