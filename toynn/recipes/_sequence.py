"""What every recipe for token sequences offers: the step, and the model."""

from os import PathLike
from pathlib import Path
from typing import Any, TypeVar

from numpy.typing import ArrayLike

from toynn.engines import SequenceEngine
from toynn.options import RecipeOptions
from toynn.recipes._recipe import Recipe
from toynn.system.critical import uninterrupted

__all__ = ["FullRecipe", "SequenceRecipe"]

E = TypeVar("E", bound=SequenceEngine[Any])


class SequenceRecipe(Recipe[E]):
    """A recipe around an engine for sequences."""

    @uninterrupted
    def step(
        self,
        seq_ids: ArrayLike,
        positions: ArrayLike | None,
        labels: ArrayLike,
        hp: ArrayLike,
        is_first: bool,
        segments: ArrayLike | None = None,
    ) -> float:
        """Train on one batch; return its loss before the update. See SequenceEngine.step."""
        self._check_built("step")
        loss = self.engine.step(seq_ids, positions, labels, hp, is_first, segments)
        self.step_index += 1
        return loss

    def accumulate(
        self,
        seq_ids: ArrayLike,
        positions: ArrayLike | None,
        labels: ArrayLike,
        segments: ArrayLike | None = None,
    ) -> float:
        """Add one micro-batch's gradients to the next step's; return its loss."""
        self._check_built("accumulate")
        return self.engine.accumulate(seq_ids, positions, labels, segments)

    def evaluate(
        self,
        seq_ids: ArrayLike,
        positions: ArrayLike | None,
        labels: ArrayLike,
        segments: ArrayLike | None = None,
    ) -> float:
        """Return the loss of one batch, and change nothing."""
        self._check_built("evaluate")
        return self.engine.evaluate(seq_ids, positions, labels, segments)

    def save(
        self, path: str | PathLike[str], outtype: str = "f32", *, overwrite: bool = False
    ) -> None:
        """Write the model as a GGUF file, which llama.cpp loads. See SequenceEngine.export_gguf."""
        self.engine.export_gguf(path, outtype, overwrite=overwrite)

    def write_run(self, folder: Path) -> None:
        """Write the model into the folder of a run: as model.gguf, and as model.safetensors."""
        self._check_built("write_run")
        self.save(folder / "model.gguf", overwrite=True)
        super().write_run(folder)


class FullRecipe(SequenceRecipe[E]):
    """A recipe that trains all weights, from random ones or from those of a model."""

    def realize_from(
        self,
        path: str | PathLike[str],
        t_seq: int = 0,
        t_batch: int = 1,
        *,
        options: RecipeOptions | None = None,
    ) -> None:
        """Start from the weights of a GGUF file or a Hugging Face folder; compile the step.

        The model's shape is the file's. ``t_seq`` 0 means the context length that it names. With
        ``options`` those count, and t_seq and t_batch do not.
        """
        kind = self._reader(path)
        self._check_new("realize_from")
        read = kind.from_hf if Path(path).is_dir() else kind.from_gguf
        self.engine = read(path, t_seq, t_batch, self.engine.backend, options=options)
        self._show()

    def declared_from(
        self, path: str | PathLike[str], t_seq: int = 0, *, options: RecipeOptions | None = None
    ) -> SequenceEngine[Any]:
        """Return an engine as ``realize_from`` makes it, without its weights."""
        return self._reader(path).declared_from(path, t_seq, self.engine.backend, options=options)

    def _reader(self, path: str | PathLike[str]) -> type[E]:
        """Return the engine that a model is read by."""
        return type(self.engine)
