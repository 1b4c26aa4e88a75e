"""Render many conversations at once, with threads that each have a renderer process.

Results and errors come in the order of the inputs, whatever the number of threads.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

from toynn.formats.tokenizer.chat import Renderers
from toynn.system.platform import cpus

A = TypeVar("A")
B = TypeVar("B")

EACH = 2  # items in the queue for each core
FEW = 8  # items done before one more process is worth starting


def in_order(function: Callable[[A], B], items: Iterable[A]) -> Iterator[B]:
    """Yield a rendering function's result for each item, in order, computed on all cores.

    An error of the function or of ``items`` is raised in its turn; later items are dropped.
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
                except Exception as error:  # raised in its turn
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
