"""The protocols of a recipe and its optimizer that the loop needs."""

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from toynn.data.batch import Batch

__all__ = ["Optimizer", "Recipe"]

Floats = NDArray[np.float32]


class Session(Protocol):
    """The part of a session that the loop uses."""

    max_grad_norm: float | None

    @property
    def n_threads(self) -> int | None:
        """The most threads of a run; None: as many as the process may use."""

    @property
    def grad_norm(self) -> float:
        """The norm of the last update's gradient before clipping."""


class Engine(Protocol):
    """The part of an engine that the loop uses."""

    @property
    def session(self) -> Session:
        """The session that holds the weights."""


class Recipe(Protocol):
    """A model with its training step."""

    @property
    def engine(self) -> Engine:
        """The model that is trained."""

    def train(self, batch: Batch, hp: Floats, is_first: bool, /) -> float:
        """Add this batch's gradients and update the weights; return the loss before the update.

        is_first zeroes the moments; gradients from ``accumulate`` are kept. Raises NonFiniteError
        if a gradient is not finite; weights and moments are untouched then.
        """

    def accumulate(self, batch: Batch, /) -> float:
        """Add this batch's gradients, weighted by its labels, to the next step; return its loss."""

    def update(self, hp: Floats, is_first: bool, /) -> None:
        """Update the weights with the gradients of ``accumulate``; see ``train``."""

    def evaluate(self, batch: Batch, /) -> float:
        """Return the batch's mean loss over its labels with loss. Nothing changes."""


class Optimizer(Protocol):
    """Makes the hyper-parameter row."""

    def hp_for_step(self, k: int, /) -> Floats:
        """Return the seven slots for update k, counted from 0."""
