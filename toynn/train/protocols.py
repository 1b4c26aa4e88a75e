"""The protocols of a recipe and its optimizer, as the loop needs them."""

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from toynn.data.batch import Batch

__all__ = ["Optimizer", "Recipe"]

Floats = NDArray[np.float32]


class Session(Protocol):
    """The part of a session that the loop touches."""

    max_grad_norm: float | None

    @property
    def n_threads(self) -> int | None:
        """How many threads a run may use; None: as many as the process."""

    @property
    def grad_norm(self) -> float:
        """Norm of the last update's gradient before clipping."""


class Engine(Protocol):
    """The part of an engine that the loop touches."""

    @property
    def session(self) -> Session:
        """The session that holds the weights."""


class Recipe(Protocol):
    """A model with its training step."""

    @property
    def engine(self) -> Engine:
        """The model that is trained."""

    def train(self, batch: Batch, hp: Floats, is_first: bool, /) -> float:
        """Add this batch's gradients and update the weights; return its loss before that.

        is_first zeroes the moments; gradients that ``accumulate`` has left are kept. Raises
        NonFiniteError, with weights and moments untouched, when a gradient is not finite.
        """

    def accumulate(self, batch: Batch, /) -> float:
        """Add this batch's gradients, times its labels, to the next step's; return its loss."""

    def update(self, hp: Floats, is_first: bool, /) -> None:
        """Update the weights by what ``accumulate`` has gathered; see ``train``."""

    def evaluate(self, batch: Batch, /) -> float:
        """Return the batch's loss: the mean over the labels that count. Nothing changes."""


class Optimizer(Protocol):
    """What makes the hyper-parameter row."""

    def hp_for_step(self, k: int, /) -> Floats:
        """Return the seven slots for update k, counted from 0."""
