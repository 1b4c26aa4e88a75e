"""Training steps for `toynn tape`: of a recipe, a model's file or folder, or a run.

The data of texts are not read, since a step's calls do not depend on them; pictures are. Where a
step is taken, its tokens are those of TEXT, if the model has a tokenizer.
"""

from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from toynn.errors import ConfigError, ToynnError
from toynn.formats.tokenizer import ByteTokenizer, Tokenizer
from toynn.jobs.config_file import read_config
from toynn.jobs.job import Job
from toynn.jobs.lora import LoRAJob
from toynn.jobs.made import OPTIONS, made, without_file
from toynn.jobs.models import ModelJob
from toynn.jobs.paths import RUN_CONFIG
from toynn.jobs.text import TextJob, rows_within
from toynn.options import RecipeOptions

TEXT = "The value of a step is what it changes. A model reads, guesses, and learns. "


class Shown:
    """The training step of a job; ``title`` names its recipe, model or run."""

    def __init__(self, title: str, make: Callable[..., Job], folder: Path | None = None) -> None:
        self.title, self._make, self._folder = title, make, folder
        self.text: str | None = None

    def recorded(self, variant: str = "") -> tuple[str, Any]:
        """Record the step without allocating memory; return (the change in words, the session).

        Raises ConfigError for a variant that the recipe does not have.
        """
        job = self._job()
        if variant == "batch":
            job.options.batch *= 2
        elif variant == "checkpointing":
            job.options.checkpointing = not job.options.checkpointing
            job.options.keep_attention &= job.options.checkpointing
        packed = variant == "packing"
        if packed and not isinstance(job, TextJob):
            raise ConfigError(f"--compare packing: {self.title} has no sequences")
        said = {
            "": "as it is",
            "batch": f"--batch {job.options.batch}",
            "checkpointing": f"{'' if job.options.checkpointing else 'no '}checkpointing",
            "packing": "packed examples",
        }
        with job.files:
            if isinstance(job, TextJob):
                engine = job.declared_with(_options(job, packed=packed))
            else:
                engine, _ = job.declared()
            engine.step_memory()
        return said[variant], engine.session

    def ready(self) -> tuple[Any, Callable[[], object]]:
        """Return a session, and a function that takes a step.

        Its tokens are those of TEXT, then ``text`` has what it read; pictures, and tokens of a
        model without a tokenizer, are random. The weights are the run's, or the recipe's initial
        ones. Raises ConfigError for a step of preferences.
        """
        job = self._job()
        with job.files:
            if isinstance(job, TextJob):
                job.recipe = job.realize_with(_options(job))
            else:
                job.recipe = job.realize()
        engine = job.recipe
        if self._folder is not None:
            engine.read_run(self._folder)
        optimizer, rng = job.optimizer(), np.random.default_rng(0)
        if getattr(engine, "preference", None) is not None:
            raise ConfigError(f"{self.title}: --time and --values cannot show a preference step")
        if isinstance(job, TextJob):
            inputs, labels = self._tokens(job, engine)
        else:
            patches = (engine.t_batch, engine.config.n_patches, engine.config.patch_size)
            inputs = rng.standard_normal(patches).astype(np.float32)
            labels = rng.integers(0, engine.config.classes, engine.t_batch)

        def step() -> None:
            k = engine.step_index
            engine.step(inputs, None, labels, optimizer.hp_for_step(max(k, 1)), k == 0)

        return engine.session, step

    def _tokens(self, job: TextJob, engine: Any) -> tuple[Any, Any]:
        """Return the tokens of a step, and the next one of each."""
        count, vocab = engine.t_batch * engine.t_seq, engine.config.vocab
        tokenizer: Any = ByteTokenizer() if vocab == ByteTokenizer().vocab_size else None
        if isinstance(job, LoRAJob):
            with suppress(ToynnError):  # a file without a tokenizer: the page says "random"
                tokenizer = Tokenizer.for_model(job.file, job.options.tokenizer)
        if tokenizer is None:
            ids = np.random.default_rng(0).integers(0, vocab, count + 1).astype(np.int32)
        else:
            once = tokenizer.encode_array(TEXT)
            ids = np.tile(once, count // max(len(once), 1) + 1)[: count + 1]
            self.text = tokenizer.decode(ids[:count].tolist())
        return ids[:-1], ids[1:]

    def _job(self) -> Job:
        """Return the job with its model open; pictures are read, texts are not."""
        job = self._make()
        job.resolve()
        if isinstance(job, LoRAJob):
            job.open_model()
        elif not isinstance(job, ModelJob):
            job.read()
        return job


def _options(job: TextJob, *, packed: bool = False) -> RecipeOptions:
    """Return the recipe's options, for rows of --seq tokens or the model's context."""
    seq = job.options.seq
    if isinstance(job, LoRAJob):
        key = f"{job.file.architecture}.context_length"
        seq, _ = rows_within(seq, job.file.require(key, int))
    return job.all_options(t_seq=seq, packed=packed)


def shown(what: str, typed: Mapping[str, Any]) -> Shown:
    """Return the step of a recipe by name, of a model's file or folder, or of a run.

    ``typed`` are options of ``toynn train`` by name; they take precedence over a run's. A model's
    file or folder gives the step of ``toynn train lora``.

    Raises ConfigError for anything else.
    """
    path, options = Path(what), dict(typed)
    recipes = without_file()
    if what in recipes:
        return Shown(f"toynn train {what}", lambda: made(what, {"batch": 1, **options}))
    if (path / RUN_CONFIG).is_file():
        file = str(path / RUN_CONFIG)
        recipe, _, _ = read_config(file, None, None, OPTIONS)
        return Shown(path.absolute().name, lambda: made(recipe, {"config": file, **options}), path)
    if not path.exists():
        names = ", ".join(("xor", *recipes))
        raise ConfigError(
            f"{what}: expected one of {names}, a model's file or folder (to train adapters over), "
            "or a run's folder; there is no such file"
        )
    # The data are never read, so any path will do.
    base = {"model": what, "data": what, "batch": 1}
    return Shown(f"adapters over {path.name}", lambda: made("lora", base | options))
