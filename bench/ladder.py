"""The ladder of docs/performance.md: a matrix product, from a triple loop to toynn's kernel.

``python bench/ladder.py`` compiles each rung with the system's C compiler, checks it against a
float64 product by NumPy, and times it at one shape. The product is C (M,N) = A (M,K) B (K,N), by
which a linear layer computes dx from dy and w. Each rung adds one idea to the rung before;
``--show`` prints its C. The last rungs are toynn's kernel at each ISA level of this CPU.
"""

import argparse
import ctypes
import os
import shlex
import subprocess
import sysconfig
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from smallest import smallest

from toynn import _kernels as kernels
from toynn.testing.limits import measure

GEMM = Path(__file__).parents[1] / "toynn" / "_kernels" / "gemm"  # gemm.h
FLAGS = ["-O3", "-march=native", "-mprefer-vector-width=512", "-ffp-contract=fast", "-fopenmp"]
SHAPE = smallest((252, 1024, 4096), (252, 1024, 512))  # M, N, K: whole tiles fill C at every level
TOLERANCE = 1e-5  # relative to the largest element: float32 sums of 4096 terms

#: The code that all rungs share: C (M,N) = A (M,K) B (K,N), stored row by row. Whole tiles of
#: MR x NR fill C, and whole blocks of KC terms fill a sum. V, MR and NR are those of toynn's tile.
HEAD = r"""
#include <stdlib.h>
#include <string.h>
#include "gemm.h"
#define MR TN_MR
#define NR TN_NR
#define KC 256
typedef ptrdiff_t size;

/* MR x NR elements of C: sums of K products of a[i * a_row + k * a_k] and b[k * b_k + j]. */
static void tile(float* c, size ldc, const float* a, size a_row, size a_k, const float* b, size b_k,
                 size K, int add) {
    tn_vec sum[MR][2];
    TN_UNROLL for (int i = 0; i < MR; i++) sum[i][0] = sum[i][1] = (tn_vec){0};
    for (size k = 0; k < K; k++) {
        tn_vec b0 = tn_load(b + k * b_k), b1 = tn_load(b + k * b_k + TN_V);
        TN_UNROLL for (int i = 0; i < MR; i++) {
            sum[i][0] += a[i * a_row + k * a_k] * b0;
            sum[i][1] += a[i * a_row + k * a_k] * b1;
        }
    }
    TN_UNROLL for (int i = 0; i < MR; i++)
        TN_UNROLL for (int v = 0; v < 2; v++) {
            float* to = c + i * ldc + v * TN_V;
            tn_store(to, add ? tn_load(to) + sum[i][v] : sum[i][v]);
        }
}

/* K terms of MR rows of A, in the order in which the tile reads them. */
static void pack_a(float* to, const float* a, size K, size terms) {
    for (size k = 0; k < terms; k++)
        for (size i = 0; i < MR; i++) to[k * MR + i] = a[i * K + k];
}

/* The same of NR columns of B. */
static void pack_b(float* to, const float* b, size N, size terms) {
    for (size k = 0; k < terms; k++) memcpy(to + k * NR, b + k * N, NR * sizeof(float));
}

void rung(float* c, const float* a, const float* b, size M, size N, size K, int threads) {
"""

RUNGS = {
    "triple loop": r"""
    for (size m = 0; m < M; m++)
        for (size n = 0; n < N; n++) {
            float sum = 0;
            for (size k = 0; k < K; k++) sum += a[m * K + k] * b[k * N + n];
            c[m * N + n] = sum;
        }
""",
    "loop order": r"""
    memset(c, 0, M * N * sizeof(float));
    for (size m = 0; m < M; m++)
        for (size k = 0; k < K; k++)
            for (size n = 0; n < N; n++) c[m * N + n] += a[m * K + k] * b[k * N + n];
""",
    "register tile": r"""
    for (size m = 0; m < M; m += MR)
        for (size n = 0; n < N; n += NR)
            tile(c + m * N + n, N, a + m * K, K, 1, b + n, N, K, 0);
""",
    "packed panels": r"""
    float* panels = aligned_alloc(64, M * K * sizeof(float));
    float* panel = aligned_alloc(64, K * NR * sizeof(float));
    for (size m = 0; m < M; m += MR) pack_a(panels + m * K, a + m * K, K, K);
    for (size n = 0; n < N; n += NR) {
        pack_b(panel, b + n, N, K);
        for (size m = 0; m < M; m += MR)
            tile(c + m * N + n, N, panels + m * K, 1, MR, panel, NR, K, 0);
    }
    free(panels);
    free(panel);
""",
    "cache blocks": r"""
    float* panels = aligned_alloc(64, M * KC * sizeof(float));
    float* panel = aligned_alloc(64, KC * NR * sizeof(float));
    for (size k = 0; k < K; k += KC) {
        for (size m = 0; m < M; m += MR) pack_a(panels + m * KC, a + m * K + k, K, KC);
        for (size n = 0; n < N; n += NR) {
            pack_b(panel, b + k * N + n, N, KC);
            for (size m = 0; m < M; m += MR)
                tile(c + m * N + n, N, panels + m * KC, 1, MR, panel, NR, KC, k > 0);
        }
    }
    free(panels);
    free(panel);
""",
    "threads": r"""
    float* panels = aligned_alloc(64, M * KC * sizeof(float));
    for (size k = 0; k < K; k += KC)
        #pragma omp parallel num_threads(threads)
        {
            float panel[KC * NR] __attribute__((aligned(64)));
            #pragma omp for
            for (size m = 0; m < M; m += MR) pack_a(panels + m * KC, a + m * K + k, K, KC);
            #pragma omp for
            for (size n = 0; n < N; n += NR) {
                pack_b(panel, b + k * N + n, N, KC);
                for (size m = 0; m < M; m += MR)
                    tile(c + m * N + n, N, panels + m * KC, 1, MR, panel, NR, KC, k > 0);
            }
        }
    free(panels);
""",
}


def text(name: str) -> str:
    """Return the C of a rung."""
    return f"{HEAD.strip()}\n{RUNGS[name].strip(chr(10))}\n}}\n"


def compiled(name: str, folder: Path) -> Callable[..., None]:
    """Compile a rung into a shared library, and load it."""
    source, library = folder / "rung.c", folder / f"{name.replace(' ', '_')}.so"
    source.write_text(text(name))
    compiler = shlex.split(os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc")
    folders = [f"-I{path}" for path in (GEMM, GEMM.parent / "base")]
    command = [*compiler, *FLAGS, *folders, "-shared", "-fPIC", source, "-o", library]
    subprocess.run(command, check=True)
    function = ctypes.CDLL(str(library)).rung
    pointer, size = ctypes.c_void_p, ctypes.c_ssize_t
    function.argtypes = [pointer, pointer, pointer, size, size, size, ctypes.c_int]

    def call(c: np.ndarray, a: np.ndarray, b: np.ndarray, n_threads: int) -> None:
        (M, K), N = a.shape, b.shape[1]
        function(c.ctypes.data, a.ctypes.data, b.ctypes.data, M, N, K, n_threads)

    return call


def of_toynn(level: str, precision: str) -> Callable[..., None]:
    """Return toynn's product at an ISA level."""
    module = kernels.load("matmul", level)

    def call(c: np.ndarray, a: np.ndarray, b: np.ndarray, n_threads: int) -> None:
        module.backward_input(c, a, b, n_threads=n_threads, precision=precision)

    return call


def timed(
    call: Callable[..., None],
    a: np.ndarray,
    b: np.ndarray,
    exact: np.ndarray,
    n_threads: int,
    seconds: float,
) -> tuple[float, float]:
    """Call for so many seconds; return the best time and the relative error."""
    c = np.full(exact.shape, np.nan, np.float32)
    spent: list[float] = []
    while sum(spent) < seconds:
        start = time.perf_counter()
        call(c, a, b, n_threads)
        spent.append(time.perf_counter() - start)
    return min(spent), float(np.abs(c - exact).max() / np.abs(exact).max())


def climb(n_threads: int, seconds: float) -> None:
    """Check and time each rung; print GFLOP/s, and the share of the machine's peak."""
    M, N, K = SHAPE
    rng = np.random.default_rng(0)
    a, b = rng.standard_normal((M, K), np.float32), rng.standard_normal((K, N), np.float32)
    exact = a.astype(float) @ b.astype(float)
    limits = measure(n_threads, seconds, (2**20,))
    print(
        f"C ({M},{N}) = A ({M},{K}) B ({K},{N}); best times; peak of one thread, float32: "
        f"{limits.one.float32 / 1e9:.0f} GFLOP/s, of {n_threads}: {limits.all.float32 / 1e9:.0f}"
    )
    print(f"{'rung':32}{'threads':>8}{'ms':>10}{'GFLOP/s':>10}{'of peak':>9}")

    def show(name: str, call: Callable[..., None], threads: int, tolerance: float) -> None:
        least, error = timed(call, a, b, exact, threads, seconds)
        if not error <= tolerance:
            raise SystemExit(f"{name}: off by {error} of the largest element, over {tolerance}")
        rate = 2 * M * N * K / least
        peak = (limits.one if threads == 1 else limits.all).float32
        figures = f"{1e3 * least:10.2f}{rate / 1e9:10.1f}{rate / peak:9.0%}"
        print(f"{name:32}{threads:8}{figures}", flush=True)

    with tempfile.TemporaryDirectory() as folder:
        for name in RUNGS:
            threads = n_threads if name == "threads" else 1
            show(name, compiled(name, Path(folder)), threads, TOLERANCE)
    for level in (name for name in kernels.built_levels() if name in kernels.supported_levels()):
        for threads in sorted({1, n_threads}):
            show(f"toynn, {level}", of_toynn(level, "highest"), threads, TOLERANCE)
    for threads in sorted({1, n_threads}):
        show(f"toynn, {kernels.level}, medium", of_toynn(kernels.level, "medium"), threads, 1e-2)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--show", choices=RUNGS, help="print the C of a rung, and nothing else")
    parser.add_argument(
        "--seconds", type=float, default=smallest(0.3, 1e-3), help="for each rung; the best counts"
    )
    options = parser.parse_args()
    if options.show:
        print(text(options.show))
    else:
        climb(options.threads, options.seconds)


if __name__ == "__main__":
    main()
