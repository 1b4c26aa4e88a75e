"""What every recipe offers: an engine, and handles to look through."""

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, Generic, TypeVar

from numpy.typing import ArrayLike

from toynn.engines import snapshot
from toynn.engines.engine import Engine
from toynn.engines.snapshot import Snapshot
from toynn.errors import LifecycleError
from toynn.formats import safetensors
from toynn.formats.files import write_atomically
from toynn.formats.safetensors import SafeTensors
from toynn.graph.tape import Tensor
from toynn.optim import AdamW
from toynn.system.critical import uninterrupted

__all__ = ["Recipe"]

E = TypeVar("E", bound=Engine[Any, Any])


class Recipe(Generic[E]):
    """A recipe around an engine. The caller owns the data, the schedule and ``is_first``.

    Ctrl-C waits until a step has ended. Where KeyboardInterrupt is raised, ``step_index`` says
    whether the step was taken: all of it, or nothing.
    """

    _builder = "realize"  # the call after which it can step
    #: AdamW with the convention of the last two slots of an hp row that the recipe is trained with
    optimizer: Callable[[], AdamW] = AdamW.for_lora

    t_loss: Tensor | None
    t_labels: Tensor | None
    t_hp: Tensor | None

    def __init__(self, engine: E) -> None:
        self.engine = engine
        self.t_loss = self.t_labels = self.t_hp = None
        self.step_index = 0  # steps taken

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.step_index} steps, {self.engine!r})"

    @contextmanager
    def _whole(self) -> Iterator[None]:
        """Start over when what is done with the engine fails, for want of memory say."""
        try:
            yield
        except LifecycleError:  # nothing was done
            raise
        except BaseException:
            self._start_over()
            raise

    @uninterrupted
    def _start_over(self) -> None:
        """Put a new engine in place of one that is half made; the memory it had taken is free."""
        self.engine = type(self.engine)(self.engine.backend)
        self.t_loss = self.t_labels = self.t_hp = None

    def _build(self) -> None:
        """Record and compile the training step of an engine that has its weights."""
        self.engine.build_training_step()
        self._show()

    def _check_built(self, call: str) -> None:
        if self.t_loss is None:
            raise LifecycleError(f"{type(self).__name__}.{call} before {self._builder}()")

    def _check_new(self, call: str) -> None:
        if self.t_loss is not None:
            raise LifecycleError(f"{type(self).__name__}.{call}: once only; make a new recipe")

    @uninterrupted
    def update(self, hp: ArrayLike, is_first: bool) -> None:
        """Update the weights by what ``accumulate`` has gathered: a step without a further batch.

        See Engine.update.
        """
        self._check_built("update")
        self.engine.update(hp, is_first)
        self.step_index += 1

    def snapshot(self) -> Snapshot:
        """Return all that training has changed; see ``restore``."""
        self._check_built("snapshot")
        return snapshot.of(self.engine, self.step_index)

    @uninterrupted
    def restore(self, found: Snapshot) -> None:
        """Go on where a recipe that was realized alike stood, with the same bits."""
        self._check_built("restore")
        snapshot.restore(self.engine, found)
        self.step_index = int(found.counts["steps"])

    def write_run(self, folder: Path) -> None:
        """Write the model into the folder of a run, in place of the one before.

        As model.safetensors, under the engine's names; of an adapter, see LoRA.write_run.
        """
        self._check_built("write_run")
        content = safetensors.parts(self.engine.weights())
        write_atomically(folder / "model.safetensors", content)

    def read_run(self, folder: Path) -> None:
        """Go back to the weights that ``write_run`` wrote."""
        self._check_built("read_run")
        with closing(SafeTensors(folder / "model.safetensors")) as file:
            self.engine.load_weights({name: file[name] for name in file.tensors})

    def check_unchanged(self) -> None:
        """Raise where a file that is mapped is no longer the one that was opened."""

    @uninterrupted
    def _show(self) -> None:
        self.t_loss = self.engine.t_loss
        self.t_labels = self.engine.t_labels
        self.t_hp = self.engine.t_hp
