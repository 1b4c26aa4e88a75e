"""What every recipe for token sequences offers: the step, and the model."""

from os import PathLike
from pathlib import Path
from typing import Any, TypeVar

from numpy.typing import ArrayLike

from toynn.engines._gguf import GGUFEngine
from toynn.recipes._recipe import Recipe

__all__ = ["FullRecipe", "SequenceRecipe"]

E = TypeVar("E", bound=GGUFEngine[Any])


class SequenceRecipe(Recipe[E]):
    """A recipe around an engine for sequences."""

    def step(
        self,
        seq_ids: ArrayLike,
        positions: ArrayLike | None,
        labels: ArrayLike,
        hp: ArrayLike,
        is_first: bool,
    ) -> float:
        """Train on one batch; return its loss before the update. See SequenceEngine.step."""
        self._check_built("step")
        loss = self.engine.step(seq_ids, positions, labels, hp, is_first)
        self.step_index += 1
        return loss

    def accumulate(
        self, seq_ids: ArrayLike, positions: ArrayLike | None, labels: ArrayLike
    ) -> float:
        """Add one micro-batch's gradients to the next step's; return its loss."""
        self._check_built("accumulate")
        return self.engine.accumulate(seq_ids, positions, labels)

    def evaluate(self, seq_ids: ArrayLike, positions: ArrayLike | None, labels: ArrayLike) -> float:
        """Return the loss of one batch, and change nothing."""
        self._check_built("evaluate")
        return self.engine.evaluate(seq_ids, positions, labels)

    def save(
        self, path: str | PathLike[str], outtype: str = "f32", *, overwrite: bool = False
    ) -> None:
        """Write the model as a GGUF file, which llama.cpp loads. See GGUFEngine.export_gguf."""
        self.engine.export_gguf(path, outtype, overwrite=overwrite)


class FullRecipe(SequenceRecipe[E]):
    """A recipe that trains all weights, from random ones or from those of a model."""

    def realize_from(
        self,
        path: str | PathLike[str],
        t_seq: int = 0,
        t_batch: int = 1,
        weight_dtype: str = "f32",
        *,
        checkpointing: bool = False,
    ) -> None:
        """Start from the weights of a GGUF file or a Hugging Face folder; compile the step.

        The model's shape is the file's. ``t_seq`` 0 means the context length that it names.
        """
        engine = self.engine
        self._check_new("realize_from")
        read = engine.from_hf if Path(path).is_dir() else engine.from_gguf
        self.engine = read(
            path,
            t_seq,
            t_batch,
            engine.backend,
            weight_dtype=weight_dtype,
            checkpointing=checkpointing,
        )
        self._show()
