"""Time contestants in turns within one run, so that a burst of other load strikes all of them.

Each turn is an untimed call, to wake the contestant's threads, and a few timed ones.
"""

import time
from collections.abc import Callable

__all__ = ["Contestants", "race", "turn"]

Contestants = dict[str, Callable[[], object]]

REST = 0.02  # seconds between turns: idle threads of another runtime spin for about 10 ms
TURN = 0.02  # seconds that a turn lasts at least, after its untimed call


def turn(call: Callable[[], object]) -> list[float]:
    """Return the seconds of each call in one turn."""
    time.sleep(REST)
    call()
    times: list[float] = []
    while sum(times) < TURN:
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return times


def race(contestants: Contestants, rounds: int) -> dict[str, list[float]]:
    """Return the seconds of all calls of each contestant, alternating."""
    times: dict[str, list[float]] = {name: [] for name in contestants}
    for _ in range(rounds):
        for name, call in contestants.items():
            times[name] += turn(call)
    return times
