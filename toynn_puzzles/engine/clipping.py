"""Clipping by the norm of all gradients together."""

import numpy as np

from toynn.backends.reference import KERNELS
from toynn_puzzles.answer import Answer, Wrong
from toynn_puzzles.compare import compare
from toynn_puzzles.puzzle import Puzzle

#: The size of the gradients, and the largest allowed norm.
CASES = {
    "gradients of usual size": (1.0, 1.0),
    "small gradients": (0.01, 1.0),
    "gradients near 1e25": (1e25, 1.0),
    "a gradient of infinity": (np.inf, 1.0),
}


def check(answer: Answer) -> None:
    """Compare the norm and the scale with the reference's, at several sizes of gradients."""
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal(shape) for shape in ((3, 4), (5,))]
    for where, (size, most) in CASES.items():
        scaled = [x.astype(np.float32) * np.float32(min(size, 1e30)) for x in arrays]
        if size == np.inf:
            scaled[1][2] = np.inf
        got = answer.several("norm_and_scale", "norm, scale", scaled, most)
        every = np.concatenate([x.ravel() for x in scaled]).astype(np.float64)
        control = np.array([most, 1.0])
        right = KERNELS["grad_norm.forward"].compute(g=every, control=control)
        if size == np.inf:
            if not np.isnan(got["scale"]):
                raise Wrong(
                    f"scale is {got['scale']}, with {where}; it should be nan.\n"
                    "Suspicion: min(1, 1 / infinity) is 0, and 0 times infinity is nan in some "
                    "weights. nan tells the update to change nothing."
                )
            continue
        norm = float(right["norm"].item())
        norms = [float(np.sqrt((x.astype(float) ** 2).sum())) for x in scaled]
        if not np.isfinite(got["norm"]):
            raise Wrong(
                f"norm is {got['norm']}, with {where}; it should be {norm:.6g}.\n"
                "Suspicion: 1e25 squared is more than float32 holds (3e38). Square in float64."
            )
        compare(
            "norm",
            got["norm"],
            norm,
            tolerance=1e-6,
            where=f", with {where}",
            suspects={
                "the square root is missing.": norm**2,
                "each array has a norm of its own here, and they are added. The norm is that of "
                "all numbers together.": sum(norms),
                "only the last array counts.": norms[-1],
                "the largest number, where the root of the sum of squares is wanted.": np.abs(
                    every
                ).max(),
                "a mean of squares, where their sum is wanted.": norm / every.size**0.5,
            },
        )
        compare(
            "scale",
            got["scale"],
            float(right["scale"].item()),
            tolerance=1e-5,
            where=f", with {where}",
            suspects={
                "small gradients are made larger. scale is 1 at most.": most / (norm + 1e-6),
                "upside down: norm / most.": (norm + 1e-6) / most,
            },
        )


PUZZLE = Puzzle(
    title="clipping by the global norm",
    wanted="""\
Return norm and scale. norm is the root of the sum of the squares of all numbers in all gradients.
All gradients will be multiplied by scale, which brings the norm down to `most`. If norm is
infinite or nan, scale is nan. gradients is a list of float32 arrays, with numbers up to 1e30.""",
    formula="scale = min(1, most / (norm + 1e-6))",
    code="""
import numpy as np


def norm_and_scale(gradients, most):
    # >>>
    norm = np.sqrt(sum((g.astype(np.float64) ** 2).sum() for g in gradients))
    scale = min(1.0, most / (norm + 1e-6)) if np.isfinite(norm) else np.nan
    # <<<
    return norm, scale
""",
    hints=(
        "Add up the squares of every array, and take one root at the end.",
        "A float32 holds up to 3e38. What is the square of 1e25?",
        "g.astype(np.float64) before squaring. Test np.isfinite(norm) before you divide.",
    ),
    why=(
        "Why one norm for all gradients, and not one for each array?",
        "One factor makes the step shorter and leaves its direction. A factor for each array "
        "would turn it.",
    ),
    same="_kernels/weights/adamw.pyx",
    check=check,
)
