"""Cache blocks: a product of any size, in little memory; tiles at the edges are not full."""

import numpy as np

from toynn_puzzles.answer import Answer
from toynn_puzzles.compare import compare, fail
from toynn_puzzles.compiled import guarded
from toynn_puzzles.puzzle import Puzzle
from toynn_puzzles.speed.measuring import written

MR, NR, KC, PAST = 6, 16, 64, 4096


def check(answer: Answer) -> None:
    """Compare products that fill tiles and blocks, or do not; infinities stand past a and b."""
    rng = np.random.default_rng(0)
    for M, N, K in (
        (12, 32, 64),
        (12, 32, 192),
        (12, 32, 100),
        (11, 32, 64),
        (12, 45, 64),
        (1, 1, 1),
    ):
        shape = f"M = {M}, N = {N}, K = {K}"
        a, b = (np.r_[rng.standard_normal(n), [np.inf] * PAST].astype("f") for n in (M * K, K * N))
        x, y = a[: M * K].reshape(M, K).astype(float), b[: K * N].reshape(K, N).astype(float)
        too_much = "all K terms are packed at once: pack at most KC."
        with (
            guarded("c", (M, N)) as c,
            guarded("room", (-(-M // MR) * MR * KC + NR * KC,), too_much) as room,
        ):
            answer("product", c, a, b, M, N, K, room, changes=(0, 6))
        if np.isinf(room).any():
            past = "past the last row of a, and past the last column of b, panels get 0."
            fail(f"numbers past the end of a or b are packed, with {shape}.", past)
        written("c", c, x @ y)
        whole, last = K // KC * KC, (K - 1) // KC * KC
        suspects = {
            "c is overwritten by each block of terms: from the second on, add.": x[:, last:]
            @ y[last:],
            "the last block has less than KC terms, and is missing.": x[:, :whole] @ y[:whole],
        }
        compare("c", c, x @ y, tolerance=1e-5, where=f", with {shape}", suspects=suspects)


PUZZLE = Puzzle(
    title="cache blocks and edges",
    wanted="""\
Return c (M, N) = a (M, K) b (K, N) for any M, N, K: take KC terms at a time, and MR x NR sums.
Only `room` may hold panels: first all of a (KC terms), then one of b. Past the edges of a and b
panels have 0, and nothing is written outside of c. c is nan at first.""",
    formula="""\
c[m, n] = sum over blocks of (sum of a[m, k] b[k, n] over the block's k)
a's panels: room[m * KC + k * MR + i] = a[m + i, k]      m = 0, MR, 2 MR, ...
b's panel:  panel[k * NR + j] = b[k, n + j]              k counts within the block""",
    told="The ladder of the product, rung 5",
    language="c",
    code="""
#include <stddef.h>
#include <string.h>

#define MR 6
#define NR 16
#define KC 64
typedef ptrdiff_t size;

static size least(size x, size y) { return x < y ? x : y; }

// sums[i * NR + j] = sum_k a[k * MR + i] b[k * NR + j]
static void tile(float* sums, const float* a, const float* b, size terms) {
    memset(sums, 0, MR * NR * sizeof(float));
    for (size k = 0; k < terms; k++)
        for (int i = 0; i < MR; i++)
            for (int j = 0; j < NR; j++) sums[i * NR + j] += a[k * MR + i] * b[k * NR + j];
}

void product(float* c, const float* a, const float* b, size M, size N, size K, float* room) {
    float sums[MR * NR], *panel = room + (M + MR - 1) / MR * MR * KC;
    // >>>
    for (size k = 0; k < K; k += KC) {
        size terms = least(KC, K - k);
        for (size m = 0; m < M; m += MR)
            for (size t = 0; t < terms; t++)
                for (size i = 0; i < MR; i++)
                    room[m * KC + t * MR + i] = m + i < M ? a[(m + i) * K + k + t] : 0;
        for (size n = 0; n < N; n += NR) {
            for (size t = 0; t < terms; t++)
                for (size j = 0; j < NR; j++)
                    panel[t * NR + j] = n + j < N ? b[(k + t) * N + n + j] : 0;
            for (size m = 0; m < M; m += MR) {
                tile(sums, room + m * KC, panel, terms);
                for (size i = 0; i < least(MR, M - m); i++)
                    for (size j = 0; j < least(NR, N - n); j++) {
                        float* to = c + (m + i) * N + n + j;
                        *to = (k ? *to : 0) + sums[i * NR + j];
                    }
            }
        }
    }
    // <<<
}
""",
    hints=(
        "The outer loop is over blocks: k = 0, KC, 2 KC, ..., with least(KC, K - k) terms. In it, "
        "pack all of a's block, then loop over n.",
        "For each n pack one panel of b, then call tile for all m. Panels are full: what is past "
        "an edge is 0, so tile needs no edges.",
        "Copy least(MR, M - m) rows and least(NR, N - n) columns of sums to c. In the first block "
        "store them, in all later ones add them.",
    ),
    why=(
        "Blocks touch c K / KC times. What do they give for it?",
        "A panel of b has KC NR numbers (4 KB here) whatever K is, so it stays in L1 while all "
        "panels of a go by, and these (KC M numbers) stay in L2.",
    ),
    same="_kernels/gemm/_loops.pxd",
    check=check,
)
