"""The first rung of the ladder: swap two loops."""

from toynn_puzzles.answer import Answer
from toynn_puzzles.puzzle import Puzzle
from toynn_puzzles.speed.measuring import check_product


def check(answer: Answer) -> None:
    """Check the product. A twentieth of the peak needs vectors along the rows of b and c."""
    check_product(
        answer,
        0.05,
        lambda: (
            "the innermost loop jumps from row to row of b, or adds to one number. Then the "
            "compiler makes no vectors."
        ),
    )


PUZZLE = Puzzle(
    title="the order of the loops",
    wanted="""\
The product below is right, and about a hundred times slower than it could be.
Make it reach 5 % of this machine's peak of float32 multiply-adds, in plain loops.
c is (M, N), a (M, K), b (K, N), each stored row by row. c is nan at first.""",
    formula="c[m, n] = sum_k a[m, k] b[k, n]",
    told="The ladder of the product, rung 2",
    language="pyx",
    seconds=110,
    code="""
cdef public void product(
    float* c, const float* a, const float* b, Py_ssize_t M, Py_ssize_t N, Py_ssize_t K
) noexcept nogil:
    cdef Py_ssize_t m, n, k
    cdef float total
    # >>>
    for m in range(M):
        for n in range(N):
            c[m * N + n] = 0
        for k in range(K):
            total = a[m * K + k]
            for n in range(N):
                c[m * N + n] += total * b[k * N + n]
    # ---
    for m in range(M):
        for n in range(N):
            total = 0
            for k in range(K):
                total += a[m * K + k] * b[k * N + n]
            c[m * N + n] = total
    # <<<
""",
    hints=(
        "Look at the innermost loop: from one k to the next, how far apart in memory are the two "
        "numbers of b?",
        "With n innermost, numbers of b and c are read side by side, and no sum waits for another: "
        "the compiler can make vectors of them.",
        "Set a row of c to 0. Then for each k, add a[m, k] times row k of b to it.",
    ),
    why=(
        "Both orders of the loops multiply as often. Where did the time go?",
        "Down a column each line of the cache is fetched for one of its 16 numbers, and no "
        "vector can be loaded.",
    ),
    same="_kernels/gemm/_loops.pxd",
    check=check,
)
