"""The rows that the sections of compare.py print, and their clock."""

import statistics
import time
from collections.abc import Callable

from toynn._kernels import matmul
from toynn.testing.race import Contestants, race


def best_and_usual(times: dict[str, list[float]]) -> tuple[dict[str, float], dict[str, float]]:
    """Return the least seconds of each contestant, and its median."""
    return (
        {who: min(t) for who, t in times.items()},
        {who: statistics.median(t) for who, t in times.items()},
    )


def clock_of(n_threads: int) -> Callable[[], float]:
    """Return the clock of CPU time for one thread (other load matters little), else wall time."""
    return time.process_time if n_threads == 1 else time.perf_counter


def lora_precisions() -> list[str]:
    """Return the precisions in which this CPU multiplies by a quantized base."""
    return ["highest", "medium", *["int8"] * bool(matmul.multiplies_quads())]


def report(title: str, contestants: Contestants, flops: int, rounds: int) -> float:
    """Print one row, GFLOP/s from minima/medians of time, and return the ratio of the minima."""
    times = race(contestants, rounds)
    best, usual = (
        {name: flops / seconds / 1e9 for name, seconds in of.items()}
        for of in best_and_usual(times)
    )
    others = [name for name in times if name != "toynn"]
    ratios = [rate["toynn"] / max(rate[name] for name in others) for rate in (best, usual)]
    rates = "".join(f"{best[name]:7.0f}/{usual[name]:4.0f}" for name in times)
    print(f"{title:42}{rates}{ratios[0]:8.2f}/{ratios[1]:.2f}", flush=True)
    return ratios[0]


def heading(names: list[str]) -> None:
    """Print the names of the columns."""
    columns = "".join(f"{name:>12}" for name in names)
    print(f"{'GFLOP/s, best/median':42}{columns}   toynn/best other", flush=True)


def summary(ratios: list[float]) -> None:
    """Print the spread of the ratios of a section, if it has any."""
    if not ratios:
        print("no shape has such a name\n")
        return
    print(f"ratio of minima: least {min(ratios):.2f}, median {statistics.median(ratios):.2f}\n")
