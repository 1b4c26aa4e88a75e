"""Time contestants in turns within one run, so that a burst of other load strikes all of them.

Each turn is an untimed call, to wake the contestant's threads, and a few timed ones.
"""

import time
from collections.abc import Callable

__all__ = ["Contestants", "race", "turn"]

Contestants = dict[str, Callable[[], object]]

REST = 0.02  # seconds between turns: idle threads of another runtime spin for about 10 ms
TURN = 0.02  # seconds that a turn lasts at least, after its untimed call


def turn(call: Callable[[], object], clock: Callable[[], float] = time.perf_counter) -> list[float]:
    """Return the seconds of each call in one turn, by a clock."""
    time.sleep(REST)
    call()
    times: list[float] = []
    while sum(times) < TURN:
        start = clock()
        call()
        times.append(clock() - start)
    return times


def race(
    contestants: Contestants, rounds: int, clock: Callable[[], float] = time.perf_counter
) -> dict[str, list[float]]:
    """Return the seconds of all calls of each contestant, alternating.

    With ``time.process_time`` they do not count what else the machine does, but add up threads.
    """
    times: dict[str, list[float]] = {name: [] for name in contestants}
    for _ in range(rounds):
        for name, call in contestants.items():
            times[name] += turn(call, clock)
    return times
