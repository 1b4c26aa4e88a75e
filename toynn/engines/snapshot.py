"""The state of a trained engine, with which another goes on with the same bits."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from toynn.errors import CheckpointError

__all__ = ["Shapes", "Snapshot", "check_alike"]

Shapes = dict[str, tuple[int, ...]]


@dataclass(frozen=True)
class Snapshot:
    """What training has changed.

    Attributes
    ----------
    counts
        Numbers: steps, batches that had dropout masks, the weight of micro-batches that wait.
    weights, optimizer
        The shapes of the trained weights by name; those of both moments (`<name>.m`, `<name>.v`),
        of what PiSSA's adapters began with,
        and, where micro-batches wait for an update, of their gradients' sums (`<name>.sum`).
    kind
        What the weights are those of: a "model", or an "adapter" of a file's.
    read
        Returns a tensor by its name: a copy, made when it is asked for.
    """

    counts: dict[str, float]
    weights: Shapes
    optimizer: Shapes
    read: Callable[[str], NDArray[np.float32]]
    kind: str = "model"


def check_alike(what: str, own: Shapes, found: Shapes) -> None:
    """Raise CheckpointError unless names and shapes are the same."""
    for name in sorted(own.keys() | found.keys()):
        if own.get(name) != found.get(name):
            raise CheckpointError(
                f"{what}: {name}: expected {own.get(name, 'none of this name')}, as the recipe "
                f"has it; got {found.get(name, 'none of this name')}: realize the recipe as the "
                "run did"
            )
