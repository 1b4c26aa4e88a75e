"""Adapters trained on preferences: which of two completions is better, or whether one is wanted.

    loss = f(log p of completions, log p by the reference)      DPO, ORPO, KTO: see toynn/ops

The model is that of LoRA; the reference is the same without adapters, over the same weights.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from toynn.engines import PreferenceOptions, SequenceEngine, Sequences
from toynn.recipes.lora import LoRA
from toynn.system.critical import uninterrupted

__all__ = ["Preference"]


class Preference(LoRA):
    """Train adapters of a model in a GGUF file on preferences. Realized as LoRA is.

    A batch is of ``toynn.data.preference``, or ``toynn.engines.Sequences``: chosen and rejected
    completions in turn, or, for KTO, completions and whether they are wanted.

    Calls in another order raise LifecycleError.
    """

    def __init__(self, options: PreferenceOptions | None = None, backend: str = "cpu") -> None:
        super().__init__(backend)
        self.preference = PreferenceOptions() if options is None else options

    def _prepare(self, engine: SequenceEngine[Any]) -> None:
        engine.enable_preference(self.preference)

    @property
    def figures(self) -> Mapping[str, tuple[float, float]]:
        """Of the last batch, by TRL's names, sums and how many: rewards/margins, logps/chosen."""
        found = self.engine.preference
        return {} if found is None else found.figures

    @uninterrupted
    def step(  # type: ignore[override]
        self,
        seq_ids: ArrayLike,
        positions: ArrayLike,
        labels: ArrayLike,
        hp: ArrayLike,
        is_first: bool,
        segments: ArrayLike,
        bounds: ArrayLike,
        wanted: ArrayLike | None = None,
    ) -> float:
        """Train on one batch; return its loss before the update. See ``Sequences``."""
        self._check_built("step")
        given = _sequences(seq_ids, positions, labels, segments, bounds, wanted)
        loss = self.engine.step_preference(given, hp, is_first)
        self.step_index += 1
        return loss

    def accumulate(  # type: ignore[override]
        self,
        seq_ids: ArrayLike,
        positions: ArrayLike,
        labels: ArrayLike,
        segments: ArrayLike,
        bounds: ArrayLike,
        wanted: ArrayLike | None = None,
    ) -> float:
        """Add one micro-batch's gradients to the next step's; return its loss."""
        self._check_built("accumulate")
        given = _sequences(seq_ids, positions, labels, segments, bounds, wanted)
        return self.engine.accumulate_preference(given)

    def evaluate(  # type: ignore[override]
        self,
        seq_ids: ArrayLike,
        positions: ArrayLike,
        labels: ArrayLike,
        segments: ArrayLike,
        bounds: ArrayLike,
        wanted: ArrayLike | None = None,
    ) -> float:
        """Return the loss of one batch, and change nothing."""
        self._check_built("evaluate")
        given = _sequences(seq_ids, positions, labels, segments, bounds, wanted)
        return self.engine.evaluate_preference(given)


def _sequences(
    seq_ids: ArrayLike,
    positions: ArrayLike,
    labels: ArrayLike,
    segments: ArrayLike,
    bounds: ArrayLike,
    wanted: ArrayLike | None,
) -> Sequences:
    return Sequences(
        np.asarray(seq_ids),
        np.asarray(positions),
        np.asarray(labels),
        np.asarray(segments),
        np.asarray(bounds),
        None if wanted is None else np.asarray(wanted),
    )
