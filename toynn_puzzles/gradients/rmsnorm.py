"""RMSNorm, backward: a mean over the row in dx, a sum over rows in dw."""

from toynn_puzzles.answer import Answer
from toynn_puzzles.compare import expected
from toynn_puzzles.puzzle import Puzzle


def check(answer: Answer) -> None:
    """Compare dx and dw at two shapes."""
    for sizes in ({"N": 4, "C": 6}, {"N": 1, "C": 3}):
        case = expected("rmsnorm", **sizes)
        x, w, dy = case.inputs["x"], case.inputs["w"], case.dy
        r = 1 / ((x * x).mean(1, keepdims=True) + 1e-5) ** 0.5
        k = (w * dy * x).mean(1, keepdims=True)
        total = (w * dy * x).sum(1, keepdims=True)
        case.compare(
            answer.several("backward", "dx, dw", dy, x, w, r),
            dx={
                "r depends on x, too: the term with the mean over the row is missing.": r * w * dy,
                "a sum over the row, where the mean is wanted (1 / C).": r * w * dy
                - x * r**3 * total,
                "the power of r in its second term: the slope of r in x[c] is -r^3 x[c] / C.": r
                * w
                * dy
                - x * r**2 * k,
                "w is missing: it stands between dy and x r.": r * dy
                - x * r**3 * (dy * x).mean(1, keepdims=True),
                "the second term is added. r falls where x^2 rises: subtract it.": r * w * dy
                + x * r**3 * k,
                "w is missing inside of the mean.": r * w * dy
                - x * r**3 * (dy * x).mean(1, keepdims=True),
            },
            dw={"r is missing: y = x r w, so the slope of y in w is x r.": (dy * x).sum(0)},
        )


PUZZLE = Puzzle(
    title="RMSNorm, backward",
    wanted="""\
Return dx (N, C) and dw (C,) from dy (N, C), x (N, C), w (C,) and r (N, 1).
Each of the N rows is divided by its root mean square. All rows share w.""",
    formula="""\
y[n, c] = x[n, c] r[n] w[c]
r[n]    = 1 / sqrt(mean_c x[n, c]^2 + eps)
the slope of r[n] in x[n, c] is -r[n]^3 x[n, c] / C""",
    code="""
def backward(dy, x, w, r):
    # >>>
    k = (w * dy * x).mean(axis=1, keepdims=True)
    dx = r * w * dy - x * r**3 * k
    dw = (dy * x * r).sum(axis=0)
    # <<<
    return dx, dw
""",
    hints=(
        "x[n, c] moves y in two ways: directly, and through r[n], which is in all y of the row.",
        "The direct way gives r w dy. The other way: the gradient of r is the sum over the row of "
        "dy x w. Multiply it by the slope from the formula.",
        "dx = r w dy - x r^3 mean(w dy x), the mean over axis 1. dw sums dy x r over the rows.",
    ),
    why=(
        "With w = 1, dx is at a right angle to x (but for eps). Why?",
        "A longer x gives the same y, so the loss does not move along x. The second term of dx "
        "takes that part away.",
    ),
    same="_kernels/norms/rmsnorm.pyx",
    check=check,
)
