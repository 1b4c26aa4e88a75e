"""Upload all inputs of a step in one compiled call, if the backend has one."""

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import ArrayLike

from toynn.backends.protocol import Backend, Feed, FeedInput, Feeds
from toynn.graph.storage import Storage
from toynn.graph.tape import Role, Tape, Tensor
from toynn.numerics import checks

WEIGHTS = (Role.PARAMETER, Role.CONSTANT)  # backends track their uploads: they may be prepacked


def compiled_feed(
    backend: Backend, storage: Storage, tape: Tape, tensors: Sequence[Tensor]
) -> Feed | None:
    """Return a call that uploads these tensors, or None if each needs its own call."""
    if not isinstance(backend, Feeds) or any(tensor.role in WEIGHTS for tensor in tensors):
        return None
    return backend.feed([_input(storage, tape, tensor) for tensor in tensors])


def passes_checks(tape: Tape, inputs: Mapping[Tensor, ArrayLike]) -> bool:
    """Make the checks that a feed does not make; return False if they do not apply.

    Raises what a check raises.
    """
    for tensor, array in inputs.items():
        for check in tape.checks.get(tensor, ()):
            if isinstance(check, checks.Below):  # the feed makes these
                continue
            if not isinstance(array, np.ndarray) or array.shape != tensor.shape:
                return False
            check(tensor.name, array)
    return True


def _input(storage: Storage, tape: Tape, tensor: Tensor) -> FeedInput:
    below = [c for c in tape.checks.get(tensor, ()) if isinstance(c, checks.Below)]
    size = min((check.size for check in below), default=None)
    ignorable = bool(below) and all(check.ignorable for check in below)
    return FeedInput(*storage.held[tensor], tensor.shape, tensor.dtype, size, ignorable)
