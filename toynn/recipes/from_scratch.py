"""Models of which all weights are trained, from random ones or from a file's."""

from os import PathLike
from typing import Any

from toynn.engines import SequenceEngine
from toynn.formats import bases
from toynn.models import GPT2Config
from toynn.optim import AdamW
from toynn.options import RecipeOptions


class FromScratch(SequenceEngine[Any]):
    """Train a model of any architecture but GPT-2, all weights.

    hp rows come from AdamW.for_from_scratch(): the update without bias correction.
    """

    optimizer = AdamW.for_from_scratch
    other_types: tuple[type[Any], ...] = (GPT2Config,)
    _declared_by = _built_by = "realize"

    def realize(self, cfg: Any, opts: RecipeOptions) -> None:
        """Draw the weights and compile the step; consumes all options."""
        self._realize(cfg, opts)

    def realize_from(
        self,
        path: str | PathLike[str],
        t_seq: int = 0,
        t_batch: int = 1,
        *,
        options: RecipeOptions | None = None,
    ) -> None:
        """Start from the weights of a GGUF file or a Hugging Face folder; compile the step.

        The model's shape is the file's. ``t_seq`` 0 means the file's context length. If ``options``
        are given, t_seq and t_batch are ignored.
        """
        with self._realizing("realize_from"):
            with bases.open(path, check=True) as file:
                self.read(file, options or RecipeOptions(t_seq, t_batch))
            self.build_training_step()


class GPT2(FromScratch):
    """Train a GPT-2 model, a GPT2Config, all weights.

    hp rows come from AdamW.for_lora(): the update with bias correction.
    """

    optimizer = AdamW.for_lora
    config_type = GPT2Config
    other_types = ()
