"""Failures of the tokenizers library as errors of toynn.

The library is Rust. What panics there comes as a PanicException, which is no Exception: it would
pass every ``except Exception``, and end the process with a traceback.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from toynn.errors import ToynnError

__all__ = ["is_failure", "refused"]


def is_failure(error: BaseException) -> bool:
    """Say whether the library failed; else somebody interrupts, or ends the process."""
    return isinstance(error, Exception) or type(error).__name__ == "PanicException"


@contextmanager
def refused(what: str, error: type[ToynnError]) -> Iterator[None]:
    """Raise ``error`` where the library fails in the block; the library raises no narrower one."""
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
        "; there is no memory, or no process, for its threads: free some, or set "
        "TOKENIZERS_PARALLELISM=false"
    )
