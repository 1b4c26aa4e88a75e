"""Turn failures of the tokenizers library into toynn's errors.

The library is written in Rust. A panic there is raised as a PanicException, which is not an
Exception. It would pass every ``except Exception``, and end the process with a traceback.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from toynn.errors import ToynnError


def is_failure(error: BaseException) -> bool:
    """Return whether the library failed, and not an interrupt or exit."""
    return isinstance(error, Exception) or type(error).__name__ == "PanicException"


@contextmanager
def refused(what: str, error: type[ToynnError]) -> Iterator[None]:
    """Raise ``error`` if the library fails in the block, by any exception."""
    try:
        yield
    except ToynnError:
        raise
    except BaseException as failure:
        if not is_failure(failure):
            raise
        raise error(f"{what}: {failure}{_hint(failure)}") from failure


def _hint(failure: BaseException) -> str:
    if "thread pool" not in str(failure):
        return ""
    return (
        "; it cannot start its threads for lack of memory or processes: free some, or "
        "set TOKENIZERS_PARALLELISM=false"
    )
