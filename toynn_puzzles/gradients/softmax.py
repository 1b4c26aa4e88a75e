"""softmax, backward: each y of a row depends on each x of that row."""

from toynn_puzzles.answer import Answer
from toynn_puzzles.compare import expected
from toynn_puzzles.puzzle import Puzzle


def check(answer: Answer) -> None:
    """Compare dx of a few rows, in which some x are masked (-infinity)."""
    for sizes in ({"N": 4, "C": 5}, {"N": 1, "C": 3}):
        case = expected("softmax", **sizes)
        y, dy = case.function(), case.dy
        total = (y * dy).sum()
        case.compare(
            answer.several("backward", "dx", dy, y),
            dx={
                "the sum over the row is missing: all y of a row share a divisor.": y * dy,
                "the sum runs over all rows; each row has its own.": y * (dy - total),
                "y is not applied to the whole difference.": y * dy
                - (y * dy).sum(1, keepdims=True),
                "y is missing inside of the sum.": y * (dy - dy.sum(1, keepdims=True)),
                "only the way from x[c] to y[c]. x[c] moves every other y of its row, too.": y
                * (1 - y)
                * dy,
            },
        )


PUZZLE = Puzzle(
    title="softmax, backward",
    wanted="""\
Return dx, the gradient of the loss with respect to x, from y and from the gradient of y, dy.
All are (N, C). Each of the N rows is a softmax of its own. x itself is not needed.""",
    formula="""\
y[j] = exp(x[j]) / sum_k exp(x[k])          in each row
the slope of y[j] in x[c] is y[j] ((1 if j == c else 0) - y[c])""",
    code="""
def backward(dy, y):
    # >>>
    return y * (dy - (y * dy).sum(axis=1, keepdims=True))
    # <<<
""",
    hints=(
        "dx[c] is a sum over j of dy[j] times the second formula. Split it in two sums.",
        "The first sum has one term that is not 0: y[c] dy[c]. The second one has y[c] in front.",
        "dx[c] = y[c] (dy[c] - sum_j y[j] dy[j]). Keep the axis of the sum: keepdims=True.",
    ),
    why=(
        "Why does backward need y, and not x?",
        "The slope of exp is exp itself, so y says it all. x may be overwritten as soon as y "
        "exists.",
    ),
    same="_kernels/norms/softmax.pyx",
    check=check,
)
