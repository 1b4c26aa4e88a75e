"""RoPE, backward: a rotation is undone by the opposite angle."""

import numpy as np

from toynn_puzzles.answer import Answer
from toynn_puzzles.compare import Expected, expected
from toynn_puzzles.puzzle import Puzzle


def check(answer: Answer) -> None:
    """Compare dx of two heads at unordered positions."""
    case = expected("rope", N=5, H=2, D=6, interleaved=0)
    positions, frequencies = case.inputs["positions"], case.inputs["inverse_frequency"]
    small = np.array([3, 0, 7, 1, 40], positions.dtype)
    positions[...] = small  # in place: the reference reads it
    right = _rotated(case.dy, -np.outer(positions, frequencies))
    case = Expected(case.inputs, case.function, case.dy, {"dx": right}, case.sizes)
    angle, pairs = np.outer(positions, frequencies), case.dy.reshape(5, 2, 3, 2)
    z = (pairs[..., 0] + 1j * pairs[..., 1]) * np.exp(-1j * angle)[:, None]
    interleaved = np.stack([z.real, z.imag], -1).reshape(5, 2, 6)
    rows = _rotated(case.dy, -np.outer(np.arange(5), frequencies))
    case.compare(
        answer.several("backward", "dx", case.dy, positions, frequencies),
        dx={
            "dy is rotated forward. The gradient of a rotation is one by -angle.": _rotated(
                case.dy, angle
            ),
            "adjacent channels are paired (0 with 1). Here channel j belongs to j + D / 2.": (
                interleaved
            ),
            "the row number is used where positions[n] is wanted.": rows,
            "dy is returned as it came.": case.dy,
        },
    )


def _rotated(x: np.ndarray, angle: np.ndarray) -> np.ndarray:
    """Return x (N, H, D), each pair rotated by its angle (N, D / 2) as a complex number."""
    half = x.shape[2] // 2
    z = (x[..., :half] + 1j * x[..., half:]) * np.exp(1j * angle)[:, None]
    return np.concatenate([z.real, z.imag], axis=2)


PUZZLE = Puzzle(
    title="RoPE, backward",
    wanted="""\
Return dx (N, H, D) from dy (N, H, D), positions (N,) and frequencies (D / 2,).
Row n stands at positions[n]. Channels j and j + D / 2 are a pair, rotated by one angle.""",
    formula="""\
a = positions[n] frequencies[j]             j = 0 ... D / 2 - 1, the same for every head
y[n, h, j]         = x[n, h, j] cos a - x[n, h, j + D / 2] sin a
y[n, h, j + D / 2] = x[n, h, j] sin a + x[n, h, j + D / 2] cos a""",
    code="""
import numpy as np


def backward(dy, positions, frequencies):
    half = frequencies.size
    # >>>
    angle = np.outer(positions, frequencies)[:, None, :]
    cos, sin = np.cos(angle), np.sin(angle)
    first, second = dy[:, :, :half], dy[:, :, half:]
    return np.concatenate([first * cos + second * sin, second * cos - first * sin], axis=2)
    # ---
    raise NotImplementedError  # your code
    # <<<
""",
    hints=(
        "A pair is multiplied by the matrix [[cos, -sin], [sin, cos]]. The backward of a product "
        "with a matrix is the product with its transpose.",
        "The transpose of a rotation is the rotation by the opposite angle: sin changes its sign.",
        "np.outer(positions, frequencies)[:, None, :] has one angle for each row and pair. "
        "dx[:, :, :half] = dy[:, :, :half] cos + dy[:, :, half:] sin.",
    ),
    why=(
        "Why does the gradient of a rotation need neither x nor y?",
        "A rotation is linear: its gradient is the transposed matrix, which is the rotation "
        "back, whatever x is.",
    ),
    same="_kernels/attention/rope.pyx",
    check=check,
)
