"""The base of recipes for token sequences: the step and the model."""

from os import PathLike
from pathlib import Path
from typing import Any, TypeVar

from numpy.typing import ArrayLike

from toynn.data.batch import Batch
from toynn.engines import SequenceEngine
from toynn.formats import bases
from toynn.models import Source
from toynn.options import RecipeOptions
from toynn.recipes._recipe import Recipe

__all__ = ["FullRecipe", "SequenceRecipe"]

E = TypeVar("E", bound=SequenceEngine[Any])


class SequenceRecipe(Recipe[E]):
    """A recipe around an engine for sequences."""

    def step(
        self,
        seq_ids: ArrayLike,
        positions: ArrayLike | None,
        labels: ArrayLike,
        hp: ArrayLike,
        is_first: bool,
        *more: ArrayLike | None,
    ) -> float:
        """Train on one batch; return its loss before the update. See SequenceEngine.step.

        ``more``: segments; for preferences also bounds and wanted.
        """
        return self.train(Batch(seq_ids, positions, labels, *more), hp, is_first)

    def save(
        self, path: str | PathLike[str], outtype: str = "f32", *, overwrite: bool = False
    ) -> None:
        """Write the model as a GGUF file, which llama.cpp loads. See SequenceEngine.export_gguf."""
        self.engine.export_gguf(path, outtype, overwrite=overwrite)

    def write_run(self, folder: Path) -> None:
        """Write the model to a run folder, as model.gguf and as model.safetensors."""
        self._built("write_run")
        self.save(folder / "model.gguf", overwrite=True)
        super().write_run(folder)


class FullRecipe(SequenceRecipe[E]):
    """A recipe that trains all weights; they start at random or from a model."""

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
        self._check_new("realize_from")
        with bases.open(path, check=False) as file:
            kind = self._kind_for(file)
        self.engine = kind.from_file(path, t_seq, t_batch, self.engine.backend, options=options)

    def declared_from(self, path: str | PathLike[str], options: RecipeOptions) -> E:
        """Return the engine that ``realize_from`` makes, declared only: without weights."""
        with bases.open(path, check=True) as file:
            return self._kind_for(file).declared(file, options, self.engine.backend)

    def _kind_for(self, file: Source) -> type[E]:
        """Return the class of engine that reads a file's model."""
        return type(self.engine)
