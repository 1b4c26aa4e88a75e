"""The state of a trained engine; another engine can continue from it with the same bits."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from toynn.errors import CheckpointError

Shapes = dict[str, tuple[int, ...]]


@dataclass(frozen=True)
class Snapshot:
    """Everything that training has changed.

    Attributes
    ----------
    counts
        Numbers: steps, batches (which number dropout masks), the weight of waiting micro-batches.
    weights, optimizer
        Shapes by name, of the trained weights and of the optimizer's tensors. The latter are both
        moments (`<name>.m`, `<name>.v`), PiSSA's initial adapters and LoRA-FA's A, and, if
        micro-batches wait for an update, the sums of their gradients (`<name>.sum`).
    kind
        Whether the weights are a "model" or an "adapter" of a file's model.
    read
        Returns a copy of a tensor by its name, made at the call.
    """

    counts: dict[str, float]
    weights: Shapes
    optimizer: Shapes
    read: Callable[[str], NDArray[np.float32]]
    kind: str = "model"


def check_alike(what: str, wanted: Shapes, stored: Shapes) -> None:
    """Raise CheckpointError unless names and shapes are the same."""
    for name in sorted(wanted.keys() | stored.keys()):
        if wanted.get(name) != stored.get(name):
            raise CheckpointError(
                f"{what}: {name}: expected {wanted.get(name, 'none of this name')}, as the recipe "
                f"has it; got {stored.get(name, 'none of this name')}: realize the recipe with "
                "the run's options"
            )
