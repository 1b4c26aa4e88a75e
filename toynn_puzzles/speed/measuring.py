"""Checks of fast code: first its results, then its rate relative to the machine's limit."""

import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from toynn.testing.limits import measure
from toynn_puzzles.answer import Answer, Wrong
from toynn_puzzles.compare import Suspects, compare, fail
from toynn_puzzles.compiled import guarded

SECONDS = 0.3  # of calls in a round; the best call counts
ROUNDS = 6  # at most: a busy machine may spoil some
TOO_FAST = 1.15  # of the limit: no work is done so fast
HOPELESS = 0.3  # of the wanted share: below this, no further round will be enough
#: M, N, K of timed products: calls are short, so a busy machine interrupts few of them.
SHAPE = 84, 512, 1024
#: M, N, K of checked products: multiples of every tile, all different.
SMALL = 84, 64, 40


def check_product(
    answer: Answer, share: float, slow: Callable[[], str], tile: tuple[int, int] = (0, 0)
) -> None:
    """Check c (M,N) = a (M,K) b (K,N) in float32, and its share of the peak of multiply-adds.

    ``slow`` returns the likely cause of a product that is too slow. ``tile`` are the rows and
    columns of a packed product's tiles.
    """
    rng = np.random.default_rng(0)
    M, N, K = SMALL
    a, b = rng.standard_normal((M, K), np.float32), rng.standard_normal((K, N), np.float32)
    right = a.astype(float) @ b.astype(float)
    with guarded("c", (M, N)) as c:
        answer("product", c, a, b, M, N, K, changes=(0,))
    written("c", c, right)
    suspects: Suspects = {}
    if tile[0]:
        suspects = {
            "every tile reads the first panel of a.": right[np.arange(M) % tile[0]],
            "every panel of b is packed from its first columns.": right[:, np.arange(N) % tile[1]],
        }
    compare(
        "c",
        c,
        right,
        tolerance=1e-5,
        sizes={"M": M, "N": N, "K": K},
        suspects={
            **suspects,
            "the last of the K terms is missing.": right - np.outer(a[:, -1], b[-1]),
            "the first of the K terms is missing.": right - np.outer(a[:, 0], b[0]),
            "only the last of the K terms is there: c is overwritten, not added to.": np.outer(
                a[:, -1], b[-1]
            ),
            "a is read as if it were (K, M): its rows are K numbers apart.": a.reshape(
                K, M
            ).T.astype(float)
            @ b,
            "b is read as if it were (N, K): its rows are N numbers apart.": a @ b.reshape(N, K).T,
        },
    )
    M, N, K = SHAPE
    x, b = np.empty((M, K), np.float32), rng.standard_normal((K, N), np.float32)
    big = np.empty((M, N), np.float32)
    product = answer.function("product")

    def change() -> None:
        rng.random(out=x, dtype=np.float32)
        big.fill(np.nan)

    def verify(_: object) -> None:
        written("c", big, total := x.astype(float) @ b)
        compare("c", big, total, tolerance=1e-5, where=", in a call that was timed")

    _check_rate(
        answer,
        lambda: product(big, x, b, M, N, K),
        2 * M * N * K,
        lambda: measure(1, 0.05, ()).one.float32,
        share,
        "GFLOP/s",
        slow,
        change,
        verify,
    )


def written(name: str, got: NDArray[Any], right: NDArray[Any]) -> None:
    """Raise Wrong if an element of an output, which starts as nan, is still nan."""
    untouched = np.isnan(got)
    if untouched.any():
        index = tuple(np.argwhere(untouched)[0])
        raise Wrong(
            f"{name}[{', '.join(map(str, index))}] is nan; it should be {right[index]:.6g}. "
            f"{np.count_nonzero(untouched)} of {got.size} elements are nan.\nSuspicion: {name} "
            "begins as nan. What is not written stays nan, and nan + 1 is nan."
        )


def check_sum(answer: Answer, name: str, count: int) -> None:
    """Check a sum over n products of ``count`` arrays; nan stands past their end."""
    for n in (1000, 100, 64, 31, 17, 16, 15, 7, 1, 0):
        arrays = np.full((count, n + 64), np.nan, np.float32)
        arrays[:, :n] = np.random.default_rng(n).standard_normal((count, n))
        items = arrays[:, :n].astype(float).prod(axis=0)
        right, got = float(items.sum()), answer(name, *arrays, n)
        near = 1e-5 * (1 + float(np.abs(items).sum()))
        if np.isnan(got):
            raise Wrong(
                f"{name} of {n} numbers is nan; it should be {right:.6g}.\nSuspicion: numbers "
                "past the end are read (nan stands there), or a sum does not begin at 0."
            )
        if abs(got - right) > near:
            told = f"{name} of {n} numbers is {got:.6g}; it should be {right:.6g}."
            hints = (said for said, value in _sums(items, arrays, got) if abs(got - value) <= near)
            fail(told, next(hints, "a part of the partial sums is not added up."))


def _sums(items: NDArray[Any], arrays: NDArray[Any], got: float) -> Iterator[tuple[str, float]]:
    """Yield suspicions, each with the sum that the mistake gives."""
    n, right = len(items), float(items.sum())
    yield "the sign is wrong.", -right
    yield "x is multiplied by itself.", float((arrays[0, :n].astype(float) ** 2).sum())
    for width in (8, 16, 32, 64):
        whole = n // width * width
        if whole < n:
            said = f"the last {n - whole} numbers are missing: n is not a multiple of {width}."
            yield said, float(items[:whole].sum())
        if whole:
            said = f"only the last {width} and what follows: sums are overwritten, not added to."
            yield said, float(items[whole - width :].sum())
    if n:
        i = int(np.abs(right - items - got).argmin())
        yield f"number {i} alone is missing.", right - float(items[i])


def check_sum_rate(answer: Answer, name: str, count: int, share: float) -> None:
    """Check the rate of a sum over ``count`` arrays, which a core's L2 holds together."""
    n, numbers = 2**16, iter(range(1, 2**40))
    arrays, function = np.ones((count, n), np.float32), answer.function(name)
    size = arrays.nbytes

    def change() -> None:
        arrays[0, 0] = next(numbers) % 64 * 1024

    def verify(total: Any) -> None:
        right = n - 1 + float(arrays[0, 0])
        if abs(total - right) > 1e-5 * right:
            raise Wrong(f"{name} is {total:.8g} in a call that was timed; it should be {right:g}.")

    _check_rate(
        answer,
        lambda: function(*arrays, n),
        size,
        lambda: measure(1, 0.05, (size,)).one.memory[size]["read"],
        share,
        "GB/s",
        lambda: "there are too few sums: each addition waits for the one before it.",
        change,
        verify,
    )


def _check_rate(
    answer: Answer,
    work: Callable[[], object],
    amount: int,
    limit: Callable[[], float],
    share: float,
    unit: str,
    slow: Callable[[], str],
    change: Callable[[], None],
    verify: Callable[[Any], None],
) -> None:
    """Time work of an amount (flops or bytes) beside the machine's limit, in turns.

    ``slow`` returns the likely cause if the work is too slow. ``change`` changes the inputs before
    each call, and ``verify`` looks at the result: neither is timed. So a program that remembers an
    earlier result is wrong.
    """
    if not answer.timed:
        return
    rates, limits = [], []
    for _ in range(ROUNDS):
        spent: list[float] = []
        while not spent or sum(spent) < SECONDS:
            change()
            start = time.process_time()  # CPU time of one thread: other load matters little
            result = work()
            spent.append(time.process_time() - start)
        verify(result)
        rates.append(amount / max(min(spent), 1e-9))
        limits.append(limit())
        reached = max(rates) / max(limits)
        if share <= reached <= TOO_FAST or reached < HOPELESS * share:
            break
    print(judge(max(rates), max(limits), share, unit, slow))


def judge(rate: float, most: float, share: float, unit: str, slow: Callable[[], str]) -> str:
    """Say how fast it is. Raises Wrong below the wanted share of the limit, and above the limit."""
    told = (
        f"{rate / 1e9:.3g} {unit}, {rate / most:.1%} of this machine's {most / 1e9:.0f} {unit} "
        "on one thread"
    )
    if rate < share * most:
        fail(
            f"the result is right, but too slow: {told}. Wanted: {share:.0%}, "
            f"which is {share * most / 1e9:.3g} {unit}.",
            slow(),
        )
    if rate > TOO_FAST * most:
        fail(
            f"the result is right, but {told}: no program can do that.",
            "not all of the work is done in each call. On a busy machine check again.",
        )
    return told
