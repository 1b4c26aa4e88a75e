"""Adapters trained by rewards: GRPO and its relatives, see toynn/engines/policy.py.

    loss = -min(ratio A, clip(ratio) A)         A: how much better than the group a sample is

The trained model is a model with LoRA adapters; the reference is that model without its adapters.
"""

from collections.abc import Mapping
from typing import Any

from numpy.typing import ArrayLike

from toynn.engines import PolicyOptions
from toynn.recipes.lora import LoRA


class GRPO(LoRA):
    """Train adapters of a model by rewards. Realize it like LoRA.

    A batch is a ``PolicyBatch`` of samples. Or it has ``parts()``, which draws and scores samples
    with the weights of this moment, and returns such batches. Calls out of order raise
    LifecycleError.
    """

    def __init__(self, options: PolicyOptions | None = None, backend: str = "cpu") -> None:
        self._loss_options = options or PolicyOptions()
        super().__init__(backend)

    def _clear(self) -> None:
        super()._clear()
        self.enable_policy(self._loss_options)
        #: the last batch's figures: (sum, count) of each
        self.figures: Mapping[str, tuple[float, float]] = {}

    def train(self, batch: Any, hp: ArrayLike, is_first: bool) -> float:
        """Draw and score a batch's samples, and train on them: see ``Engine.train``."""
        return self._in_parts(batch, lambda part: super(GRPO, self).train(part, hp, is_first))

    def accumulate(self, batch: Any, *arrays: Any) -> float:
        """Do the same without an update: see ``Engine.accumulate``."""
        return self._in_parts(batch, super().accumulate)

    def _in_parts(self, batch: Any, last: Any) -> float:
        """Accumulate the gradients of all parts but the last, which goes to ``last``."""
        parts = batch.parts() if hasattr(batch, "parts") else [batch]
        losses, sums = [], dict(getattr(batch, "figures", {}))
        with self.exclusively("train()"):
            for part in parts:
                learn = last if part is parts[-1] else super().accumulate
                losses.append(learn(part))
                assert self.objective is not None
                for name, (total, count) in self.objective.figures.items():
                    before = sums.get(name, (0.0, 0.0))
                    sums[name] = before[0] + total, before[1] + count
        self.figures = sums
        return sum(losses) / len(losses)
