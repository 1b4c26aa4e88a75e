"""A sum in many lanes: additions that need not wait for each other."""

from toynn_puzzles.answer import Answer
from toynn_puzzles.puzzle import Puzzle
from toynn_puzzles.speed.measuring import check_sum, check_sum_rate


def check(answer: Answer) -> None:
    """Check sums of several lengths; nan stands past the end and must not be added."""
    check_sum(answer, "total", 1)
    check_sum_rate(answer, "total", 1, 0.2)


PUZZLE = Puzzle(
    title="sixteen sums at once",
    wanted="""\
The sum below adds one number after the other. Each addition waits for the one before, because
the compiler may not change the order of float additions. You may. n may be any number.
Reach 20 % of the rate at which this machine reads its L2 cache.""",
    language="pyx",
    seconds=60,
    code="""
cdef public float total(const float* x, Py_ssize_t n) noexcept nogil:
    cdef Py_ssize_t i, k
    cdef float result = 0
    # >>>
    cdef float sums[64]
    cdef Py_ssize_t whole = n // 64 * 64
    for k in range(64):
        sums[k] = 0
    for i in range(0, whole, 64):
        for k in range(64):
            sums[k] += x[i + k]
    for k in range(64):
        result += sums[k]
    for i in range(whole, n):
        result += x[i]
    # ---
    for i in range(n):
        result += x[i]
    # <<<
    return result
""",
    hints=(
        "An addition takes about four cycles, and a core can begin two vectors of 16 in every "
        "cycle. How many sums must be under way?",
        "Keep an array `cdef float sums[16]` (or 64). Number i goes to sum i % 16.",
        "An outer loop in steps of 64, an inner one over 64 lanes: its length is known, so the "
        "compiler makes vectors. Add up the lanes at the end, and then the numbers that are left.",
    ),
    why=(
        "How many sums would be enough, if an addition takes 4 cycles and 2 begin in each?",
        "8 registers of sums: so many additions are on their way at once. With 16 lanes, 128 sums.",
    ),
    same="_kernels/base/_common.pxd",
    check=check,
)
