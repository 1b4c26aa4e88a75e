"""LayerNorm, backward: two means over the row, and sums over rows."""

from toynn_puzzles.answer import Answer
from toynn_puzzles.compare import expected
from toynn_puzzles.puzzle import Puzzle


def check(answer: Answer) -> None:
    """Compare dx, dw and db of rows whose mean is far from 0."""
    for sizes in ({"N": 4, "C": 6}, {"N": 1, "C": 3}):
        case = expected("layernorm", **sizes)
        x, w, dy = case.inputs["x"], case.inputs["w"], case.dy
        mean = x.mean(1, keepdims=True)
        r = 1 / (((x - mean) ** 2).mean(1, keepdims=True) + 1e-5) ** 0.5
        h, g = (x - mean) * r, w * dy
        mean_g, mean_gh = g.mean(1, keepdims=True), (g * h).mean(1, keepdims=True)
        case.compare(
            answer.several("backward", "dx, dw, db", dy, x, w, mean, r),
            dx={
                "mean and r depend on x, too: the two means over the row are missing.": r * g,
                "the mean of w dy is missing: x moves the row's mean.": r * (g - h * mean_gh),
                "the mean of w dy h is missing: x moves r.": r * (g - mean_g),
                "w is missing: it stands between dy and h.": r
                * (dy - dy.mean(1, keepdims=True) - h * (dy * h).mean(1, keepdims=True)),
            },
            dw={
                "dy times x, where dy times (x - mean) r is wanted.": (dy * x).sum(0),
                "the mean is not subtracted from x.": (dy * x * r).sum(0),
            },
        )


PUZZLE = Puzzle(
    title="LayerNorm, backward",
    wanted="""\
Return dx (N, C), dw (C,) and db (C,) from dy (N, C), x (N, C), w (C,), mean and r (N, 1).
mean and r are computed from x, so both pass a gradient back to it.""",
    formula="""\
mean[n] = mean_c x[n, c]
r[n]    = 1 / sqrt(mean_c (x[n, c] - mean[n])^2 + eps)
h[n, c] = (x[n, c] - mean[n]) r[n]
y[n, c] = h[n, c] w[c] + b[c]""",
    code="""
def backward(dy, x, w, mean, r):
    # >>>
    h, g = (x - mean) * r, w * dy
    mean_g = g.mean(axis=1, keepdims=True)
    mean_gh = (g * h).mean(axis=1, keepdims=True)
    dx = r * (g - mean_g - h * mean_gh)
    dw = (dy * h).sum(axis=0)
    db = dy.sum(axis=0)
    # <<<
    return dx, dw, db
""",
    hints=(
        "Call g = w dy the gradient of h. dw and db are sums over rows, as in a linear layer.",
        "dx = r (g - something - something h). Both somethings are means over the row: h does not "
        "change if you add a constant to the row x, or a multiple of h.",
        "dx = r (g - mean(g) - h mean(g h)).",
    ),
    why=(
        "With any w, each row of dx sums to 0. Why?",
        "The mean takes away a number that is added to all x of a row, so the loss does not "
        "move along (1, ..., 1).",
    ),
    same="_kernels/norms/layernorm.pyx",
    check=check,
)
