"""A dot product in the CPU's own instructions: AVX-512, or AVX2 where the CPU lacks it."""

from toynn_puzzles.answer import Answer
from toynn_puzzles.puzzle import Puzzle
from toynn_puzzles.speed.measuring import check_sum, check_sum_rate


def check(answer: Answer) -> None:
    """Check dot products of several lengths; nan stands past the end and must not be added."""
    check_sum(answer, "dot", 2)
    check_sum_rate(answer, "dot", 2, 0.25)


PUZZLE = Puzzle(
    title="a dot product in AVX-512 or AVX2",
    wanted="""\
Return the sum of x[i] y[i] over n numbers. n may be any number. Read nothing past the end.
Reach 25 % of the rate at which this machine reads its L2 cache, by vector instructions.
Fill in the part for your CPU: AVX-512 if it has that, else AVX2.""",
    formula="""\
__m512 s = _mm512_setzero_ps();                 16 zeros     (AVX2: __m256, _mm256_..., 8)
__m512 v = _mm512_loadu_ps(x);                  16 floats from x
s = _mm512_fmadd_ps(v, w, s);                   v w + s, in each lane
v = _mm512_maskz_loadu_ps((1 << left) - 1, x);  the first `left` floats, then zeros
float sum = _mm512_reduce_add_ps(s);            the sum of the lanes (AVX2 has no such call)""",
    language="c",
    seconds=60,
    code="""
#include <immintrin.h>
#include <stddef.h>

typedef ptrdiff_t size;

#if defined(__AVX512F__)

float dot(const float* x, const float* y, size n) {
    // >>>
    __m512 sums[4];
    for (int j = 0; j < 4; j++) sums[j] = _mm512_setzero_ps();
    size i = 0;
    for (; i + 64 <= n; i += 64)
        for (int j = 0; j < 4; j++) {
            __m512 v = _mm512_loadu_ps(x + i + 16 * j), w = _mm512_loadu_ps(y + i + 16 * j);
            sums[j] = _mm512_fmadd_ps(v, w, sums[j]);
        }
    for (; i < n; i += 16) {
        __mmask16 mask = n - i < 16 ? (1 << (n - i)) - 1 : 0xffff;
        __m512 v = _mm512_maskz_loadu_ps(mask, x + i), w = _mm512_maskz_loadu_ps(mask, y + i);
        sums[0] = _mm512_fmadd_ps(v, w, sums[0]);
    }
    __m512 low = _mm512_add_ps(sums[0], sums[1]), high = _mm512_add_ps(sums[2], sums[3]);
    return _mm512_reduce_add_ps(_mm512_add_ps(low, high));
    // ---
    float sum = 0;  // one addition waits for the other
    for (size i = 0; i < n; i++) sum += x[i] * y[i];
    return sum;
    // <<<
}

#elif defined(__AVX2__) && defined(__FMA__)

float dot(const float* x, const float* y, size n) {
    // >>>
    __m256 sums[4];
    for (int j = 0; j < 4; j++) sums[j] = _mm256_setzero_ps();
    size i = 0;
    for (; i + 32 <= n; i += 32)
        for (int j = 0; j < 4; j++) {
            __m256 v = _mm256_loadu_ps(x + i + 8 * j), w = _mm256_loadu_ps(y + i + 8 * j);
            sums[j] = _mm256_fmadd_ps(v, w, sums[j]);
        }
    float lanes[8], sum = 0;
    __m256 low = _mm256_add_ps(sums[0], sums[1]), high = _mm256_add_ps(sums[2], sums[3]);
    _mm256_storeu_ps(lanes, _mm256_add_ps(low, high));
    for (int j = 0; j < 8; j++) sum += lanes[j];
    for (; i < n; i++) sum += x[i] * y[i];
    return sum;
    // ---
    float sum = 0;  // one addition waits for the other
    for (size i = 0; i < n; i++) sum += x[i] * y[i];
    return sum;
    // <<<
}

#else
#error "this puzzle needs a CPU with AVX-512 or AVX2"
#endif
""",
    hints=(
        "One sum of 16 lanes adds a vector every four cycles, since each addition waits for the "
        "one before it. Four such sums do four times as much.",
        "Loop over 64 numbers at a time (AVX2: 32): load four vectors of x and of y, and add each "
        "product to a sum of its own. Declare them as __m512 sums[4].",
        "What is left is less than 64: go on by 16 with one sum, and mask the last vector by "
        "(1 << left) - 1. In AVX2, store the lanes, and add what is left in a plain loop.",
    ),
    why=(
        "Why can a dot product not reach the peak of the multiply-adds?",
        "Each multiply-add needs two loads, and a core makes two loads in a cycle. A tile loads "
        "16 for 28.",
    ),
    same="_kernels/gemm/gemv.h",
    check=check,
)
