"""All that a recipe has learned, so that it can go on elsewhere with the same bits."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from toynn.engines.engine import Engine
from toynn.errors import CheckpointError
from toynn.graph.tape import Tensor

__all__ = ["Snapshot", "of", "restore"]

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


def of(engine: Engine[Any, Any], step_index: int) -> Snapshot:
    """Return a recipe's state, as it is now; ``read`` is for now, too."""
    session, kept = engine.session, _optimizer(engine)
    weight, sums = session.waiting()
    named = {f"{name}.sum": values for name, values in sums.items()}

    def read(name: str) -> NDArray[np.float32]:
        if name in named:
            return named[name]
        return session.download(kept[name] if name in kept else engine.parameters[name])

    return Snapshot(
        {"steps": step_index, "batches": getattr(engine, "batches", 0), "waiting": weight},
        _shapes(engine.parameters),
        _shapes(kept) | {name: values.shape for name, values in named.items()},
        read,
        "adapter" if getattr(engine, "file", None) else "model",
    )


def restore(engine: Engine[Any, Any], found: Snapshot) -> None:
    """Put a state back into an engine that was realized alike; CheckpointError if it was not."""
    kept, weight = _optimizer(engine), found.counts["waiting"]
    own = _shapes(engine.parameters)
    sums = {f"{name}.sum": shape for name, shape in own.items()} if weight else {}
    _check_alike("weights", own, found.weights)
    _check_alike("optimizer", _shapes(kept) | sums, found.optimizer)
    for name, tensor in (*engine.parameters.items(), *kept.items()):
        engine.session.upload(tensor, found.read(name))
    if weight:
        engine.session.wait(weight, {name: found.read(f"{name}.sum") for name in own})
    if hasattr(engine, "batches"):
        engine.batches = int(found.counts["batches"])


def _optimizer(engine: Engine[Any, Any]) -> dict[str, Tensor]:
    moments: dict[str, Tensor] = {}
    for name, (m, v) in engine.moments.items():
        moments |= {f"{name}.m": m, f"{name}.v": v}
    return moments | dict(getattr(engine, "starts", {}))


def _shapes(tensors: Mapping[str, Tensor]) -> Shapes:
    return {name: tensor.shape for name, tensor in tensors.items()}


def _check_alike(what: str, own: Shapes, found: Shapes) -> None:
    """Raise CheckpointError unless names and shapes are the same."""
    for name in sorted(own.keys() | found.keys()):
        if own.get(name) != found.get(name):
            raise CheckpointError(
                f"{what}: {name}: expected {own.get(name, 'none of this name')}, as the recipe "
                f"has it; got {found.get(name, 'none of this name')}: realize the recipe as the "
                "run did"
            )
