"""What every recipe for token sequences offers: the step, and handles to look through."""

from typing import Any, Generic, TypeVar

from numpy.typing import ArrayLike

from toynn.engines._sequence import SequenceEngine
from toynn.tape import Tensor

__all__ = ["SequenceRecipe"]

E = TypeVar("E", bound=SequenceEngine[Any])


class SequenceRecipe(Generic[E]):
    """A recipe around an engine. The caller owns the data, the schedule and ``is_first``."""

    t_loss: Tensor | None
    t_labels: Tensor | None
    t_hp: Tensor | None

    def __init__(self, engine: E) -> None:
        self.engine = engine
        self.t_loss = self.t_labels = self.t_hp = None
        self.step_index = 0  # steps taken

    def _build(self) -> None:
        """Record and compile the training step of an engine that has its weights."""
        self.engine.build_training_step()
        self.t_loss = self.engine.t_loss
        self.t_labels = self.engine.t_labels
        self.t_hp = self.engine.t_hp

    def step(
        self,
        seq_ids: ArrayLike,
        positions: ArrayLike | None,
        labels: ArrayLike,
        hp: ArrayLike,
        is_first: bool,
    ) -> float:
        """Train on one batch; return its loss before the update. See SequenceEngine.step."""
        loss = self.engine.step(seq_ids, positions, labels, hp, is_first)
        self.step_index += 1
        return loss

    def accumulate(
        self, seq_ids: ArrayLike, positions: ArrayLike | None, labels: ArrayLike
    ) -> float:
        """Add one micro-batch's gradients to the next step's; return its loss."""
        return self.engine.accumulate(seq_ids, positions, labels)

    def evaluate(self, seq_ids: ArrayLike, positions: ArrayLike | None, labels: ArrayLike) -> float:
        """Return the loss of one batch, and change nothing."""
        return self.engine.evaluate(seq_ids, positions, labels)
