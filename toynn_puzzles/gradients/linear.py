"""y = x w^T + b: two products and a sum over rows."""

from toynn_puzzles.answer import Answer
from toynn_puzzles.compare import expected
from toynn_puzzles.puzzle import Puzzle


def check(answer: Answer) -> None:
    """Compare the gradients of a layer with more columns than rows, and of one row."""
    for sizes in ({"M": 4, "N": 3, "K": 5}, {"M": 1, "N": 6, "K": 2}):
        case = expected("matmul", **sizes)
        x, w = case.inputs["x"], case.inputs["w"]
        got = answer.several("backward", "dx, dw, db", case.dy, x, w)
        case.compare(got, db={"the mean over rows, where the sum is wanted.": case.dy.mean(0)})


PUZZLE = Puzzle(
    title="a linear layer, backward",
    wanted="""\
Return dx, dw and db, the gradients of the loss with respect to x, w and b, from that of y, dy.
A gradient has the shape of its array: x (M, K), w (N, K), b (N,), y (M, N).""",
    formula="y[m, n] = sum_k x[m, k] w[n, k] + b[n]",
    code="""
def backward(dy, x, w):
    # >>>
    dx = dy @ w
    dw = dy.T @ x
    db = dy.sum(axis=0)
    # <<<
    return dx, dw, db
""",
    hints=(
        "Write down the shapes. dx has the shape of x, dw has the shape of w. Which products of "
        "dy with w, and of dy with x, give them?",
        "b[n] is added to every row. So b[n] moves the loss through every element of dy[:, n].",
        "dx = dy @ w. dw has the rows of dy.T and the columns of x.",
    ),
    why=(
        "What must a training program keep until this backward pass, and what not?",
        "x, for dw. w is there anyway, and y is not needed: kept inputs are most of a step's "
        "memory.",
    ),
    same="_kernels/gemm/matmul.pyx",
    check=check,
)
