"""What a recipe of ``toynn train`` says of itself; train.py calls it, in this order.

resolve     fill in what was not given, refuse what contradicts itself
read        the data, and the model that is started from
declared    the model without its memory
realize     the recipe, ready to step
announce    what is to be trained, on what
tables      what config.toml says beside the flags
batches, per_epoch, valid, measure      for the loop
show        what the best weights do; print what else there is to say
"""

import time
from abc import ABC, abstractmethod
from argparse import Namespace
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from typing import Any, ClassVar

from toynn.adamw import AdamW
from toynn.cli._flags import Flag, gathered, resolve_source
from toynn.cli._text import fact
from toynn.data.digest import digest
from toynn.options import RecipeOptions
from toynn.schedule import Schedule
from toynn.train.folder import RunFolder, Value
from toynn.train.options import LoopOptions, Result
from toynn.train.protocols import Batch, Recipe

__all__ = ["Training", "late"]

PATIENCE = 5.0  # seconds that a run which was stopped may still take to show what it came to
SOURCES = (
    "model",
    "donor",
    "init_from",
    "adapter",
    "tokenizer",
    "questions",
)  # flags that name files


def late(result: Result) -> Callable[[], bool]:
    """Return what says that no more is to be shown: of a run that was stopped, after PATIENCE."""
    end = time.monotonic() + PATIENCE
    return lambda: result.interrupted and time.monotonic() > end


class Training(ABC):
    """A run of one recipe, as the arguments say."""

    name: ClassVar[str]
    help: ClassVar[str]
    flags: ClassVar[tuple[Flag, ...]]
    source: ClassVar[tuple[str, str]] = ("init_from", "model")  # the flag that names one; a what
    unit: str = "tokens"  # of what is trained on, in metrics.jsonl
    items: str = "tokens"  # the same, in what is printed
    mixes: bool = False  # training batches are harder than those that are held out

    recipe: Any  # once it is realized

    def __init__(self, arguments: Namespace) -> None:
        self.arguments = arguments
        self.files = ExitStack()  # what is open until the recipe is realized
        self.baselines: dict[str, float] = {}  # losses to compare with, by name

    # -- What the flags say --------------------------------------------------------------------

    @classmethod
    def default(cls, name: str) -> Any:
        """Return the default of a flag, where nothing is started from."""
        return next(flag.default for flag in cls.flags if flag.name == name)

    def starts_from_source(self) -> bool:
        """Say whether the run starts from a model or an adapter; fill in defaults if not.

        Raises ConfigError where a flag is given about which that leaves no choice.
        """
        return resolve_source(self.flags, self.arguments, *self.source)

    def options(self, **more: Any) -> RecipeOptions:
        """Return what the flags say of the recipe, and more that no flag says."""
        return RecipeOptions(**gathered(RecipeOptions, self.flags, self.arguments) | more)

    def loop_options(self) -> dict[str, Any]:
        """Return what the flags say of the loop: fields of LoopOptions."""
        given = gathered(LoopOptions, self.flags, self.arguments)
        return given | {"max_grad_norm": given["max_grad_norm"] or None}

    def schedule(self) -> Schedule:
        """Return the learning rates that the flags ask for."""
        return Schedule(**gathered(Schedule, self.flags, self.arguments))

    def optimizer(self) -> AdamW:
        """Return the recipe's optimizer with what the flags say of it."""
        optimizer = self._optimizer()
        for name, value in gathered(AdamW, self.flags, self.arguments).items():
            setattr(optimizer, name, value)
        return optimizer

    # -- What a recipe says --------------------------------------------------------------------

    def _optimizer(self) -> AdamW:
        """Return the optimizer in the recipe's convention."""
        return AdamW.for_lora()

    @abstractmethod
    def resolve(self) -> None:
        """Fill in what was not given; refuse what contradicts itself."""

    @abstractmethod
    def read(self) -> None:
        """Read the data; what stays open until ``realize`` goes into ``files``."""

    @abstractmethod
    def declared(self) -> tuple[Any, int]:
        """Return an engine like the one to be trained, before it takes memory; rows of a batch."""

    @abstractmethod
    def realize(self) -> Recipe:
        """Return the recipe, ready to step."""

    def announce(self) -> None:
        """Print how large the model is, and what its step takes."""
        engine = self.recipe.engine
        count = sum(tensor.size for tensor in engine.tensors.values())
        trained = sum(tensor.size for tensor in engine.parameters.values())
        memory = engine.session.memory()
        own = ("weights", "moments", "gradients", "activations")
        parts = (*own, "packed", "peak") if memory.packed else (*own, "peak")
        sizes = ", ".join(f"{part} {getattr(memory, part) / 1e6:.1f}" for part in parts)
        only = f", {trained:,} of them trained" if trained < count else ""
        print(f"model       {count:,} parameters{only}")
        print(fact("memory", f"{sizes} MB"))

    def sources(self) -> dict[str, str]:
        """Return the SHA-256 of each file or folder that the run starts from, by its flag."""
        given = ((flag.name, vars(self.arguments).get(flag.name)) for flag in self.flags)
        return {name: digest(path) for name, path in given if path and name in SOURCES}

    def notes(self) -> dict[str, Any]:
        """Return what a report tells beside config.toml."""
        return {"baselines": self.baselines}

    @abstractmethod
    def tables(self) -> dict[str, Mapping[str, Value]]:
        """Return the tables of config.toml beside those of the run and its flags."""

    @abstractmethod
    def batches(self) -> Iterator[Batch]:
        """Return the batches to train on, without end."""

    @abstractmethod
    def per_epoch(self) -> float:
        """Return how many batches are one pass through the data; valid once they are read."""

    @abstractmethod
    def valid(self) -> Iterable[Batch]:
        """Return the batches to evaluate on."""

    def extras(self) -> Sequence[Any]:
        """Return what is measured behind the batches to evaluate on: none, if nothing is asked."""
        return ()

    def measure(self, batch: Any) -> Mapping[str, float]:
        """Return the figures of a batch to evaluate on: its "loss", and others."""
        return {"loss": self.recipe.evaluate(*batch)}

    def check(self) -> None:
        """Raise where a file that is mapped is no longer the one that was opened."""
        self.recipe.check_unchanged()

    def sample(self) -> Iterable[str]:
        """Return a text that the model writes now, in pieces; none, where it writes none."""
        return ()

    @abstractmethod
    def show(self, folder: RunFolder, result: Result) -> str:
        """Show what the model does, in short if it was interrupted; return what to say of it.

        What a report tells of it goes to the folder's notes.
        """

    def epilogue(self, folder: RunFolder) -> Iterable[str]:
        """Return the lines that are printed last."""
        return ()
