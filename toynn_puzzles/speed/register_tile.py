"""The second rung: a tile of c in registers."""

from toynn_puzzles.answer import Answer
from toynn_puzzles.puzzle import Puzzle
from toynn_puzzles.speed.measuring import check_product

#: The beginning of both C puzzles about products.
HEAD = """\
#include <stddef.h>
#include <stdlib.h>

typedef ptrdiff_t size;

// V floats fill a vector register. A tile has MR rows and NR columns, two vectors.
#ifdef __AVX512F__
#define V 16
#define MR 14
#else
#define V 8
#define MR 6
#endif
#define NR (2 * V)
typedef float vec __attribute__((vector_size(4 * V), aligned(4)));
"""
TILE = """\
    vec sum[MR][2] = {0};
    for (size k = 0; k < K; k++) {
        vec b0 = *(const vec*)(b + k * b_k), b1 = *(const vec*)(b + k * b_k + V);
        #pragma GCC unroll 16
        for (int i = 0; i < MR; i++) {
            sum[i][0] += a[i * a_i + k * a_k] * b0;
            sum[i][1] += a[i * a_i + k * a_k] * b1;
        }
    }
    #pragma GCC unroll 16
    for (int i = 0; i < MR; i++) {
        *(vec*)(c + i * N) = sum[i][0];
        *(vec*)(c + i * N + V) = sum[i][1];
    }
"""


def check(answer: Answer) -> None:
    """Check the product. On AVX-512, loops that store c after every term get 11 %, a tile 37 %."""
    check_product(
        answer,
        0.3,
        lambda: (
            "c is stored in each step of k, or the sums are not in registers: the loops over "
            "i must be unrolled."
            if "vec " in answer.text.partition("void tile")[2]
            else "it multiplies one number at a time, and walks down the columns of b. Load "
            "vectors of b's rows, and keep sums of vectors."
        ),
    )


PUZZLE = Puzzle(
    title="a tile in registers",
    wanted="""\
tile() computes MR x NR elements of c. Keep them all in vector registers while k runs.
Reach 30 % of this machine's peak of float32 multiply-adds. M is a multiple of MR, and N of NR.
A `vec` is V floats: `x + y`, `x * y` and `number * x` work on all of them at once.""",
    formula="""\
c[i * N + j] = sum_k a[i * K + k] b[k * N + j]          i < MR, j < NR
vec x = *(const vec*)p;                                 load V floats from p
*(vec*)p = x;                                           store them""",
    told="The ladder of the product, rung 3",
    language="c",
    seconds=60,
    code=HEAD
    + """
static void tile(float* c, const float* a, const float* b, size N, size K) {
    // >>>
"""
    + TILE.replace("b_k", "N").replace("a_i", "K").replace("k * a_k", "k")
    + """\
    // ---
    for (int i = 0; i < MR; i++)
        for (int j = 0; j < NR; j++) {
            float sum = 0;
            for (size k = 0; k < K; k++) sum += a[i * K + k] * b[k * N + j];
            c[i * N + j] = sum;
        }
    // <<<
}

void product(float* c, const float* a, const float* b, size M, size N, size K) {
    for (size m = 0; m < M; m += MR)
        for (size n = 0; n < N; n += NR)
            tile(c + m * N + n, a + m * K, b + n, N, K);
}
""",
    hints=(
        "Declare vec sum[MR][2] before the loop over k, and store it to c after that loop.",
        "In each step of k load two vectors of b: *(const vec*)(b + k * N) and the one V floats "
        "further. Each of the MR numbers of a is multiplied by both.",
        "The compiler keeps sum in registers only if the loops over i are unrolled: write "
        "`#pragma GCC unroll 16` before them.",
    ),
    why=(
        "Why 14 x 2 vectors on AVX-512, and not 16 x 2?",
        "There are 32 registers: 28 sums, 2 of b, and 1 or 2 for the numbers of a.",
    ),
    same="_kernels/gemm/gemm.c",
    check=check,
)
