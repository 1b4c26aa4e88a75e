"""Time contestants in turns within one run, so that a burst of other load hits all of them.

A turn is an untimed call, which wakes the contestant's threads, and a few timed calls.
"""

import time
from collections.abc import Callable

Contestants = dict[str, Callable[[], object]]

REST = 0.02  # seconds between turns: idle threads of another runtime spin for about 10 ms
TURN = 0.02  # least seconds of a turn's timed calls


def turn(call: Callable[[], object], clock: Callable[[], float] = time.perf_counter) -> list[float]:
    """Return the seconds of each timed call in one turn."""
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
    """Let contestants alternate; return the seconds of all calls of each.

    With ``time.process_time`` as the clock, other load does not count, but threads add up.
    """
    times: dict[str, list[float]] = {name: [] for name in contestants}
    for _ in range(rounds):
        for name, call in contestants.items():
            times[name] += turn(call, clock)
    return times
