"""Adapters trained on preferences: which of two completions is better, or whether one is wanted.

    loss = f(log p of completions, log p by the reference)      DPO, ORPO, KTO: see toynn/ops

The model is that of LoRA; the reference is the same without adapters, over the same weights.
"""

from collections.abc import Mapping
from typing import Any

from toynn.engines import PreferenceOptions, SequenceEngine
from toynn.recipes.lora import LoRA

__all__ = ["Preference"]


class Preference(LoRA):
    """Train adapters of a model in a GGUF file on preferences. Realized as LoRA is.

    A batch, of ``toynn.data.preference`` say, has bounds: chosen and rejected completions in turn,
    or, for KTO, completions and whether they are wanted.

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
