"""Adapters trained on preferences: which of two completions is better, or whether one is wanted.

    loss = f(log p of completions, log p by the reference)      DPO, ORPO, KTO: see toynn/ops

The trained model is a model with LoRA adapters; the reference is that model without its adapters.
"""

from collections.abc import Mapping

from toynn.engines import PreferenceOptions
from toynn.recipes.lora import LoRA


class Preference(LoRA):
    """Train adapters of a model on preferences. Realize it like LoRA.

    A batch (see ``toynn.data.preference``) holds chosen and rejected completions in turn, and their
    bounds. For KTO it holds completions, their bounds, and whether each is wanted.

    Calls out of order raise LifecycleError.
    """

    def __init__(self, options: PreferenceOptions | None = None, backend: str = "cpu") -> None:
        self._loss_options = options or PreferenceOptions()
        super().__init__(backend)

    def _clear(self) -> None:
        super()._clear()
        self.enable_preference(self._loss_options)

    @property
    def figures(self) -> Mapping[str, tuple[float, float]]:
        """The last batch's figures, by TRL's names (rewards/margins, ...): (sum, count) of each."""
        return {} if self.preference is None else self.preference.figures
