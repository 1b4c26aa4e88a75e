"""The ladders of docs/performance.md: from the plainest C to toynn's kernel, an idea a rung.

``python bench/ladder.py`` climbs the product's; ``python bench/ladder.py attention`` (or softmax,
layernorm, cross_entropy) another one, and ``--svg FILE`` draws it. The C of the rungs is in
bench/rungs, to be read from the top. The system's C compiler compiles it. Each rung is checked
against float64, then timed at one shape. The last rungs are toynn's kernel: it must be installed,
or PYTHONPATH be a checkout in which its kernels are built. ``--file MINE.c`` takes rungs from
your file instead: those functions that it has, with the names and parameters of bench/rungs. A
product of yours is also tried at sizes that no tile divides.
"""

import argparse
import ctypes
import os
import re
import runpy
import shlex
import subprocess
import sysconfig
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from smallest import smallest

from toynn import _kernels as kernels
from toynn.testing.cases import CASES
from toynn.testing.limits import measure

ROOT = Path(__file__).parents[1]
RUNGS = ROOT / "bench" / "rungs"
FLAGS = ["-O3", "-march=native", "-mprefer-vector-width=512", "-ffp-contract=fast", "-fopenmp"]

#: M, N, K of the product: whole tiles fill C at every level.
SHAPE = smallest((252, 1024, 4096), (252, 1024, 512))
EDGES = (29, 75, 515)  # no tile, panel or block divides them
SPARE = 2**16  # numbers before and after C, for a product that writes outside of it
PRODUCT = ("triple_loop", "loop_order", "register_tile", "packed_panels", "cache_blocks", "threads")
T = smallest(1024, 130)
#: The other ladders: sizes of the op's case, then the rungs as functions of forward and backward.
LADDERS: dict[str, tuple[dict[str, int], dict[str, tuple[str, str]]]] = {
    "attention": (
        {"B": 1, "T": T, "H": 1, "KV": 1, "D": 64, "causal": 1},
        {
            "plain": ("plain", "plain_backward"),
            "online softmax": ("online", "online_backward"),
            "blocks": ("blocks", "blocks_backward"),
            "packed segments": ("segments", "segments_backward"),
        },
    ),
    "softmax": (
        {"N": T, "C": T},
        {
            "plain": ("softmax_plain", "softmax_plain_backward"),
            "online": ("softmax_online", ""),
            "lanes": ("softmax_lanes", ""),
        },
    ),
    "layernorm": (
        {"N": smallest(256, 9), "C": 768},
        {"plain": ("layernorm_plain", "layernorm_plain_backward")},
    ),
    "cross_entropy": (
        {"N": smallest(256, 9), "V": smallest(50257, 1025)},
        {"plain": ("cross_entropy_plain", "cross_entropy_plain_backward")},
    ),
}
ROUNDED = 10  # times the tolerance of a case, whose kernel adds up in 16 partial sums: here one


class Rung(NamedTuple):
    """A call, what it writes, what that is in float64, and how far it may be off."""

    name: str
    call: Callable[[], object]
    found: dict[str, np.ndarray]
    exact: dict[str, np.ndarray]
    tolerance: float
    threads: int = 1

    def check(self) -> None:
        """Call, and raise SystemExit unless each result is near to the float64 one."""
        self.call()
        for name, exact in self.exact.items():
            error = np.abs(self.found[name] - exact).max() / (1 + np.abs(exact).max())
            if not error <= self.tolerance:
                off = f"{name} is off by {error:.2g}, allowed {self.tolerance:.2g}"
                raise SystemExit(f"{self.name}: {off}")

    def best(self, seconds: float) -> float:
        """Call for so many seconds; return the seconds of the fastest call."""
        spent: list[float] = []
        while sum(spent) < seconds:
            start = time.perf_counter()
            self.call()
            spent.append(time.perf_counter() - start)
        return min(spent)


def compiled(file: Path, folder: Path) -> ctypes.CDLL:
    """Compile the rungs of a file into a shared library in a folder, and load it.

    Raises SystemExit if the file is missing or does not compile.
    """
    if not file.is_file():
        raise SystemExit(f"{file}: no such file")
    compiler = shlex.split(os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc")
    kernel = ROOT / "toynn" / "_kernels"
    paths = [f"-I{path}" for path in (RUNGS, kernel / "gemm", kernel / "base")]
    library = folder / f"{file.stem}.so"
    source = [file, "-o", library, "-lm"]
    done = subprocess.run([*compiler, *FLAGS, *paths, "-shared", "-fPIC", *source], check=False)
    if done.returncode:
        raise SystemExit(f"{file}: does not compile; the compiler's words are above")
    return ctypes.CDLL(str(library))


def parameters(file: Path, function: str) -> list[tuple[str, bool]]:
    """Return name and "it is written" of each parameter of a function; [] if there is none."""
    found = re.search(rf"^void {function}\(([^{{]*)\)\s*{{", file.read_text(), re.M)
    if not function or found is None:
        return []
    parts = [part.strip() for part in found[1].split(",")]
    return [(part.split()[-1], part.startswith("float*")) for part in parts]


def of_c(library: ctypes.CDLL, file: Path, function: str, given: dict[str, Any]) -> partial[None]:
    """Return a call of a function of a file with what its parameters name."""
    for name, _ in parameters(file, function):
        if name not in given:
            raise SystemExit(f"{file}: {function}: no parameter is called {name}: see bench/rungs")
    values = [given[name] for name, _ in parameters(file, function)]
    passed = [
        value.ctypes.data_as(ctypes.c_void_p)
        if isinstance(value, np.ndarray)
        else ctypes.c_ssize_t(value)
        for value in values
    ]
    return partial(getattr(library, function), *passed)


def product(
    library: ctypes.CDLL, file: Path, shape: tuple[int, ...], n_threads: int
) -> Iterator[Rung]:
    """C (M,N) = A (M,K) B (K,N), by which a linear layer computes dx from dy and w."""
    M, N, K = shape
    rng = np.random.default_rng(0)
    a, b = rng.standard_normal((M, K), np.float32), rng.standard_normal((K, N), np.float32)
    exact = {"c": a.astype(float) @ b.astype(float)}
    given = {"a": a, "b": b, "M": M, "N": N, "K": K}

    def c() -> dict[str, np.ndarray]:
        room = np.full(M * N + 2 * SPARE, np.nan, np.float32)
        return {"c": room[SPARE:-SPARE].reshape(M, N)}

    for function in PRODUCT:
        if parameters(file, function):
            count = n_threads if function == "threads" else 1
            call = of_c(library, file, function, given | (found := c()) | {"threads": count})
            yield Rung(function.replace("_", " "), call, found, exact, 1e-5, count)
    levels = [name for name in kernels.built_levels() if name in kernels.supported_levels()]
    ways = [(f"toynn, {level}", level, "highest", 1e-5) for level in levels]
    for name, level, precision, near in [
        *ways,
        (f"toynn, {kernels.level}, medium", kernels.level, "medium", 1e-2),
    ]:
        dx = kernels.load("matmul", level).backward_input
        for threads in sorted({1, n_threads}):
            call = partial(dx, (found := c())["c"], a, b, n_threads=threads, precision=precision)
            yield Rung(name, call, found, exact, near, threads)


def rows(op: str, library: ctypes.CDLL, file: Path, sizes: dict[str, int]) -> Iterator[Rung]:
    """The rungs of another op: forward, then backward, with the inputs of the op's test case."""
    case, (_, rungs) = CASES[op], LADDERS[op]
    for name, functions in [*rungs.items(), ("toynn", ("", ""))]:
        packed = {"segments": 1} if name == "packed segments" else {}
        calls = {c.entry: c for c in case.calls(np.random.default_rng(0), **sizes | packed)}
        p = np.zeros(
            (sizes.get("T", 0),) * 2, np.float32
        )  # attention's plain rung keeps it for the backward
        for entry, function in zip(("forward", "backward"), functions, strict=True):
            call, told = calls[entry], f"{name}, {entry}"
            found = {key: call.arrays[key].copy() for key in call.expected}
            run: Callable[[], object]
            if name == "toynn":
                kernel = getattr(getattr(kernels, op), entry)
                run = partial(kernel, **call.arrays | found, **call.options, n_threads=1)
                yield Rung(told, run, found, call.expected, case.tolerance)
            elif parameters(file, function):
                given = call.arrays | found | sizes | {"p": p, "go": call.arrays.get("do")}
                written = {key for key, out in parameters(file, function) if out}
                exact = {key: call.expected[key] for key in written & {*call.expected}}
                run = of_c(library, file, function, given)
                yield Rung(told, run, found, exact, ROUNDED * case.tolerance)


def _of_width(library: ctypes.CDLL, file: Path, sizes: dict[str, int]) -> Iterator[Rung]:
    """The forward pass of toynn's attention at other sizes."""
    for rung in rows("attention", library, file, sizes):
        if rung.name == "toynn, forward":
            yield rung._replace(name=f"toynn, forward, D {sizes['D']}")


def look_over(ladder: str, mine: Path) -> None:
    """Say which functions a reader's file lacks. Raises SystemExit if it has none of the ladder."""
    pairs = [(f, "") for f in PRODUCT] if ladder == "product" else LADDERS[ladder][1].values()
    found = [[bool(parameters(mine, function)) for function in pair] for pair in pairs]
    if not any(map(any, found)):
        known = ", ".join(function for pair in pairs for function in pair if function)
        raise SystemExit(f"{mine}: expected `void NAME(...) {{` with one of these names: {known}")
    for pair, there in zip(pairs, found, strict=True):
        for function, is_there in zip(pair, there, strict=True):
            if function and any(there) and not is_there:
                print(f"{mine}: {function}: not found, so it is not checked")


def climb(ladder: str, n_threads: int, seconds: float, svg: Path | None, mine: Path | None) -> None:
    """Check, time and print each rung; of a product also its rate and share of the peak."""
    M, N, K = SHAPE
    limits = measure(n_threads, seconds, (2**20,))
    sizes = dict(zip("MNK", SHAPE, strict=True)) if ladder == "product" else LADDERS[ladder][0]
    print(
        f"{ladder}, {', '.join(f'{name} {size}' for name, size in sizes.items())}; best times; "
        f"peak of one thread, float32: {limits.one.float32 / 1e9:.0f} GFLOP/s, of {n_threads}: "
        f"{limits.all.float32 / 1e9:.0f}\n{'rung':32}{'threads':>8}{'ms':>10}",
        "  GFLOP/s  of peak" if ladder == "product" else "",
    )
    times: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as folder:
        file = mine or RUNGS / f"{ladder if ladder in ('product', 'attention') else 'rows'}.c"
        library = compiled(file, Path(folder))
        if mine:
            look_over(ladder, mine)
        if ladder == "product":
            rungs = product(library, file, SHAPE, n_threads)
        else:
            rungs = rows(ladder, library, file, sizes)
            if ladder == "attention":  # a length that no block divides
                for rung in rows(ladder, library, file, sizes | {"T": 130}):
                    rung._replace(name=f"{rung.name}, T 130").check()
                rungs = chain(
                    rungs, *(_of_width(library, file, sizes | {"D": D}) for D in (32, 128))
                )
        for rung in rungs:
            rung.check()
            best = rung.best(seconds)
            row = f"{rung.name:32}{rung.threads:8}{1e3 * best:10.3f}"
            if ladder == "product":
                machine = limits.one if rung.threads == 1 else limits.all
                precision = "medium" if "medium" in rung.name else None
                peak = max(machine.peaks(precision).values())
                rate = 2 * M * N * K / best
                row += f"{rate / 1e9:10.1f}{rate / peak:9.0%}"
            print(row, flush=True)
            times[rung.name if rung.threads == 1 else f"{rung.name}, {rung.threads}"] = 1e3 * best
        print("Each row was compared with float64 before it was timed.")
        if mine and ladder == "product":
            for rung in product(library, file, EDGES, n_threads):
                if not rung.name.startswith("toynn"):
                    at = rung._replace(name=f"{rung.name}, {EDGES} with edges")
                    at.check()
                    print(f"{at.name}: right")
    if svg:
        bars = runpy.run_path(str(ROOT / "docs" / "pictures.py"))["bars"]
        svg.write_text(bars(f"{ladder}: ms, on a logarithmic scale", times).svg())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("ladder", nargs="?", default="product", choices=["product", *LADDERS])
    parser.add_argument("--threads", type=int, default=2, help="of the product's last rungs")
    parser.add_argument("--svg", type=Path, metavar="FILE", help="draw the times as bars")
    parser.add_argument(
        "--seconds", type=float, default=smallest(0.3, 1e-3), help="for each rung; the best counts"
    )
    parser.add_argument("--file", type=Path, metavar="MINE.c", help="rungs of your own")
    options = parser.parse_args()
    climb(options.ladder, options.threads, options.seconds, options.svg, options.file)


if __name__ == "__main__":
    main()
