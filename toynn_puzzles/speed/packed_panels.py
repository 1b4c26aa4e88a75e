"""The third rung: copy a tile's operands into the order in which it reads them."""

import re

import numpy as np

from toynn_puzzles.answer import Answer
from toynn_puzzles.compare import compare
from toynn_puzzles.compiled import guarded, load
from toynn_puzzles.puzzle import Puzzle
from toynn_puzzles.speed.measuring import SMALL, check_product, written
from toynn_puzzles.speed.register_tile import HEAD, TILE


def check(answer: Answer) -> None:
    """Check both copies, then the product; a tile that reads a and b unpacked is slower."""
    M, N, K = SMALL
    rng = np.random.default_rng(1)
    a, b = rng.standard_normal((M, K), np.float32), rng.standard_normal((K, N), np.float32)
    tile = []
    for name, x, rest, most in (("pack_a", a, [K], 14), ("pack_b", b, [N, K], 32)):
        with guarded("to", (K * most,)) as to:
            answer(name, to, x, *rest, changes=(0,))
        smaller = {"pack_a": 6, "pack_b": 16}[name]  # size of AVX2's tile
        width = most if np.isfinite(to[K * smaller :]).any() else smaller
        right = a[:width].T if name == "pack_a" else b[:, :width]
        got = to[: K * width].reshape(K, width)
        written(f"{name}: to", got, right)
        lying = (
            {
                "rows of a are copied one after the other. Row k of the panel has the MR "
                "numbers a[0, k] ... a[MR - 1, k].": a[:width].reshape(K, width)
            }
            if name == "pack_a"
            else {}
        )
        compare(f"{name}: to, as rows k,", got, right, suspects=lying)
        tile.append(width)
    sizes = tile[0], tile[1]
    check_product(answer, 0.55, lambda: slow(answer, sizes), sizes)


def slow(answer: Answer, tile: tuple[int, int]) -> str:
    """Return the likely cause of a slow product; counts how often it packs each panel."""
    M, N, K = SMALL
    text = re.sub(r"(void pack_([ab])\([^)]*\)\s*{)", r"\1 calls_\2++;", answer.text)
    functions = load(
        "c",
        answer.path,
        f"#include <stddef.h>\nstatic ptrdiff_t calls_a, calls_b;\n{text}\n"
        "void count(ptrdiff_t* to) { to[0] = calls_a, to[1] = calls_b; }\n",
    )
    calls = np.zeros(2, np.int64)
    functions["product"](*(np.zeros(n, np.float32) for n in (M * N, M * K, K * N)), M, N, K)
    functions["count"](calls)
    for name, count, panels in zip("ab", calls.tolist(), (M // tile[0], N // tile[1]), strict=True):
        if count > panels:
            return (
                f"{name} has {panels} panels here, and pack_{name} runs {count} times. Call it "
                "outside of the inner loop, so that it packs each panel once."
            )
    return "each panel is packed only once, so tile() must be slow. Have you changed it?"


PUZZLE = Puzzle(
    title="packed panels",
    wanted="""\
tile() reads MR rows of a and NR columns of b, packed in the order in which it needs them.
Write pack_a, pack_b and product's loops. Reach 55 % of the machine's peak.
M is a multiple of MR, and N of NR. Pack each part of a and b once.""",
    formula="""\
a's panel of MR rows:      to[k * MR + i] = a[i * K + k]
b's panel of NR columns:   to[k * NR + j] = b[k * N + j]""",
    told="The ladder of the product, rung 4",
    language="c",
    seconds=60,
    code=HEAD
    + """
// c, MR rows of N numbers, from panels of a and b
static void tile(float* c, const float* a, const float* b, size N, size K) {
"""
    + TILE.replace("b_k", "NR").replace("a[i * a_i + k * a_k]", "a[k * MR + i]")
    + """}

void pack_a(float* to, const float* a, size K) {
    // >>>
    for (size k = 0; k < K; k++)
        for (size i = 0; i < MR; i++) to[k * MR + i] = a[i * K + k];
    // <<<
}

void pack_b(float* to, const float* b, size N, size K) {
    // >>>
    for (size k = 0; k < K; k++)
        for (size j = 0; j < NR; j++) to[k * NR + j] = b[k * N + j];
    // <<<
}

void product(float* c, const float* a, const float* b, size M, size N, size K) {
    float* panels = aligned_alloc(64, (4 * M * K + 63) / 64 * 64);  // all of a
    float* panel = aligned_alloc(64, (4 * NR * K + 63) / 64 * 64);  // NR columns of b
    // >>>
    for (size m = 0; m < M; m += MR) pack_a(panels + m * K, a + m * K, K);
    for (size n = 0; n < N; n += NR) {
        pack_b(panel, b + n, N, K);
        for (size m = 0; m < M; m += MR) tile(c + m * N + n, panels + m * K, panel, N, K);
    }
    // <<<
    free(panels);
    free(panel);
}
""",
    hints=(
        "pack_a is two loops: over k, and over the MR rows. So is pack_b. The formula is their "
        "body.",
        "In product: first pack all of a, MR rows at a time; a panel of MR rows takes MR * K "
        "numbers.",
        "Then for each NR columns: pack them once, and call tile for all panels of a with that "
        "panel of b.",
    ),
    why=(
        "Packing reads and writes a and b once more. Why is the product faster?",
        "Each packed number is used many times, and is then read side by side: no page and no "
        "line in vain.",
    ),
    same="_kernels/gemm/_loops.pxd",
    check=check,
)
