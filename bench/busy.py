"""A training step beside busy processes, each in its own session as on a desktop."""

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from smallest import smallest

SECONDS = smallest(10.0, 0.05)  # of measured steps
LIMIT = 60  # seconds after which a busy process ends by itself
BUSY = f"import time\nend = time.time() + {LIMIT}\nwhile time.time() < end: pass"


@contextmanager
def company(n: int) -> Iterator[None]:
    """Keep n other processes busy for a while."""
    others = [
        subprocess.Popen([sys.executable, "-c", BUSY], start_new_session=True) for _ in range(n)
    ]
    try:
        yield
    finally:
        for other in others:
            other.kill()
            other.wait()


def mean_ms(step: Callable[[], object], n: int) -> float:
    """Milliseconds per step beside n busy processes: the mean, stalls and trials included."""
    with company(n):
        time.sleep(0.3)
        step()
        count, start = 0, time.perf_counter()
        while time.perf_counter() - start < SECONDS:
            step()
            count += 1
        return 1e3 * (time.perf_counter() - start) / count
