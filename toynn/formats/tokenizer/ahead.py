"""Many conversations at once: threads that each wait for a renderer of their own.

Results and errors come in the order of the inputs, so the number of threads does not show.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

from toynn.formats.tokenizer.chat import Renderers
from toynn.system.platform import cpus

__all__ = ["in_order"]

A = TypeVar("A")
B = TypeVar("B")

EACH = 2  # waiting for a renderer beside the one that it works on
FEW = 8  # items, for which one more process is not worth its start


def in_order(function: Callable[[A], B], items: Iterable[A]) -> Iterator[B]:
    """Yield what a function that renders makes of each item, on all cores, some items ahead.

    What it raises, or ``items`` do, is raised in its turn; no item behind it counts then.
    """
    cores = len(cpus())
    items, ended = iter(items), False
    ahead: deque[Future[B]] = deque()
    done = 0
    renderers = Renderers()
    pool = ThreadPoolExecutor(cores, initializer=renderers.begin)
    try:
        while True:
            while not ended and len(ahead) < min(EACH * cores, 1 + done // FEW):
                try:
                    ahead.append(pool.submit(function, next(items)))
                except StopIteration:
                    ended = True
                except Exception as error:  # its turn comes
                    ahead.append(Future())
                    ahead[-1].set_exception(error)
                    ended = True
            if not ahead:
                return
            yield ahead.popleft().result()
            done += 1
    finally:
        for waiting in ahead:
            waiting.cancel()
        if ahead:
            renderers.kill()
        pool.shutdown()
        renderers.close()
