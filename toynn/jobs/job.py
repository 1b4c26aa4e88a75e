"""A job is a run of one recipe by its options.

run.py calls its methods in this order:

    fetch       download files on the hub that options name
    resolve     fill in missing options, refuse contradictory ones
    read        read the data, and the model that the run starts from
    declared    return the model before it takes memory
    realize     return the recipe, ready to step
    tables      return config.toml's tables in addition to [run] and [train]
    batches     return the training batches; valid and measure serve the training loop, too
    announce    print the model and the data
    show        show what the best weights do
    epilogue    return the last lines to print

Subclasses are in text.py, models.py, lora.py and vit.py.
"""

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import MISSING, replace
from pathlib import Path
from typing import Any, ClassVar, TypeVar

from toynn.data.batch import Batch
from toynn.data.digest import digest
from toynn.engines.engine import Engine
from toynn.errors import ConfigError, said
from toynn.jobs.directory import Directory
from toynn.jobs.options import JobOptions, arranged
from toynn.optim import AdamW
from toynn.options import RecipeOptions
from toynn.system.printing import fact
from toynn.train.folder import RunFolder, Value
from toynn.train.state import Figures, Result

T = TypeVar("T")

PATIENCE = 5.0  # seconds that a stopped run may take to show its results


def late(result: Result) -> Callable[[], bool]:
    """Return a function that tells whether a stopped run must end: PATIENCE seconds are over."""
    end = time.monotonic() + PATIENCE
    return lambda: result.interrupted and time.monotonic() > end


class Job(ABC):
    """A run of one recipe.

    ``typed`` are values of options by name, as ``checked`` returns them; other options have the
    defaults of ``kind``, the dataclass of the job's options. ``command`` is the command that
    started the job, for its report. Raises ConfigError for options that are missing, or that
    contradict one another.
    """

    name: ClassVar[str]
    kind: ClassVar[type[JobOptions]]
    source: ClassVar[tuple[str, str]] = ("init_from", "model")  # option to start from, its kind
    unit: str = "tokens"  # what metrics.jsonl counts
    items: str = "tokens"  # what printed lines count

    options: JobOptions
    recipe: Any  # exists once ``realize`` was called

    def __init__(self, typed: Mapping[str, Any], command: str | None = None) -> None:
        self.known, self.command = arranged(self.kind), command
        self.options = self._completed(typed)
        self.fresh = False  # whether toynn chose the name of the run's folder
        self.limit: int | None = None  # steps given beside epochs; the run ends with the shorter
        self.directory = Directory()  # where config.toml's relative paths start
        self.beside = Path()  # the parent of the run's folder
        self.files = ExitStack()  # files that stay open until the recipe is realized
        self.ends = ExitStack()  # what is closed when the run ends
        self.before: Mapping[str, Any] = {}  # the identity of a run that is resumed
        self.baselines: dict[str, float] = {}  # losses to compare with, by name
        self.said: list[str] = []  # lines to print once all checks have passed

    # -- Options -------------------------------------------------------------------------------

    def _completed(self, typed: Mapping[str, Any]) -> JobOptions:
        """Return the given options and the defaults; None where the source has its own.

        Raises ConfigError for an option that is missing, or that the source determines.
        """
        source, what = self.source
        values, missing = dict(typed), []
        for name, each in self.known.items():
            if each.default is MISSING and not typed.get(name):
                missing.append(each.flag)
            elif source in typed and each.source != "same":
                values.setdefault(name, None)
                if each.source == "own" and name in typed:
                    named = self.known[source].flag
                    raise ConfigError(
                        f"{each.flag}: the {what} that {named} names has its own value"
                    )
        if missing:
            raise ConfigError(
                f"the following arguments are required: {', '.join(missing)} (see `toynn train "
                f"{self.name} --help`)"
            )
        return self.kind(**values)

    @property
    def starts_from_source(self) -> bool:
        """Whether the run starts from a model or an adapter."""
        return getattr(self.options, self.source[0]) is not None

    def take(self, kind: type[T], **more: Any) -> T:
        """Return an object that takes options, with ``more`` fields that are not options."""
        return kind(**self.fields(kind) | more)

    def fields(self, kind: type[Any]) -> dict[str, Any]:
        """Return the fields of a class that options fill, without those that are None."""
        values = ((each.of, getattr(self.options, name)) for name, each in self.known.items())
        return {field: value for (of, field), value in values if of is kind and value is not None}

    def in_config(self) -> dict[str, Value]:
        """Return the options that config.toml has, without options that the source determines.

        If a run counts epochs, ``steps`` is the limit given beside them; the number of steps
        follows from the data.
        """
        values = dict(vars(self.options))
        if self.options.epochs is not None:
            values["steps"] = self.limit
        return {
            name: self.directory.word(values[name])
            for name, each in self.known.items()
            if each.in_config and values[name] is not None
            if not (self.starts_from_source and each.source == "own")
        }

    def recipe_options(self, **more: Any) -> RecipeOptions:
        """Return the options to realize the recipe with."""
        return self.take(RecipeOptions, **more)

    def optimizer(self) -> AdamW:
        """Return the optimizer in the recipe's convention, with the given options of AdamW."""
        optimizer: AdamW = self.recipe.optimizer()
        return replace(optimizer, **self.fields(AdamW))

    def fetch(self) -> None:
        """Download what options name on the hub. Raises ConfigError and DataError."""
        for name, each in self.known.items():
            value = getattr(self.options, name)
            if each.fetch is None or value is None:
                continue
            words = [value] if isinstance(value, str) else value
            paths = tuple(each.fetch(word, self.say) for word in words)
            setattr(self.options, name, paths[0] if isinstance(value, str) else paths)

    # -- Steps of a run, which recipes define --------------------------------------------------

    @abstractmethod
    def resolve(self) -> None:
        """Fill in missing options; raise ConfigError for contradictory ones."""

    @abstractmethod
    def read(self) -> None:
        """Read the data; files that stay open until ``realize`` go into ``files``."""

    def all_options(self) -> RecipeOptions:
        """Return the recipe's options with the rows that the data need. Call ``read`` first."""
        return self.recipe_options()

    @abstractmethod
    def declared_with(self, options: RecipeOptions) -> Any:
        """Return an engine like the one to train, before it takes memory."""

    def declared(self) -> tuple[Any, int]:
        """Return such an engine, and the number of rows of a batch."""
        engine = self.declared_with(self.all_options())
        return engine, engine.t_batch * engine.t_seq

    def read_by_step(self) -> int:
        """Return the bytes of a mapped file that a step reads."""
        return 0

    @abstractmethod
    def realize(self) -> Engine[Any]:
        """Return the recipe, ready to step."""

    def say(self, label: str, text: str) -> None:
        """Keep a line to be printed when training starts. An error before that drops it."""
        self.said.append(fact(label, said(text)))

    def announce(self) -> None:
        """Print the size of the model and the memory of a step."""
        engine = self.recipe
        count = sum(tensor.size for tensor in engine.tensors.values())
        trained = sum(tensor.size for tensor in engine.parameters.values())
        memory = engine.session.memory()
        kinds = ("weights", "moments", "gradients", "activations")
        parts = (*kinds, "prepacked", "peak") if memory.prepacked else (*kinds, "peak")
        sizes = ", ".join(f"{part} {getattr(memory, part) / 1e6:.1f}" for part in parts)
        only = f", {trained:,} of them trained" if trained < count else ""
        print(f"model       {count:,} parameters{only}")
        print(fact("memory", f"{sizes} MB"))

    def sources(self) -> dict[str, str]:
        """Return the SHA-256 of each file or folder that the run starts from, by its option."""
        values = vars(self.options)
        return {n: digest(values[n]) for n, each in self.known.items() if each.hashed and values[n]}

    def notes(self) -> dict[str, Any]:
        """Return what a report tells in addition to config.toml."""
        return {"baselines": self.baselines}

    @abstractmethod
    def tables(self) -> dict[str, Mapping[str, Value]]:
        """Return the tables of config.toml in addition to [run] and [train]."""

    @abstractmethod
    def batches(self) -> Iterator[Batch]:
        """Return the batches to train on, without end."""

    @abstractmethod
    def per_epoch(self) -> float:
        """Return the number of batches in one pass through the data. Call ``read`` first."""

    @abstractmethod
    def valid(self) -> Iterable[Batch]:
        """Return the batches to evaluate on."""

    def extras(self) -> Sequence[Any]:
        """Return what is measured after the evaluation batches, such as questions."""
        return ()

    @abstractmethod
    def measure(self, batch: Any) -> Figures:
        """Return the figures of an evaluation batch: "loss", and further ones by name."""

    def joined(self, measured: Sequence[Any]) -> Mapping[str, float]:
        """Return figures of a whole evaluation: see ``Learner``."""
        return {}

    def check(self) -> None:
        """Raise if a mapped file was replaced or overwritten."""
        self.recipe.check_unchanged()

    def sample(self) -> Iterable[str]:
        """Return a text that the model writes now, in pieces; nothing if it cannot write."""
        return ()

    @abstractmethod
    def show(self, folder: RunFolder, result: Result) -> str:
        """Show what the model does; return a text about the best weights.

        An interrupted run shows less. Facts for the report go to the folder's notes.
        """

    def kept(self, by: str, result: Result) -> str:
        """Return which weights a run keeps: the best by a metric, or the newest."""
        if not result.best_losses:
            return "newest"
        return "best" if by == "loss" else f"best by {by}"

    @abstractmethod
    def epilogue(self, folder: RunFolder, result: Result) -> Iterable[str]:
        """Return the lines that are printed last: commands that try the model."""
