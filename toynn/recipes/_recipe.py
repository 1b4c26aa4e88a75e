"""What every recipe offers: an engine, and handles to look through."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Generic, TypeVar

from toynn.engines._engine import Engine
from toynn.errors import LifecycleError
from toynn.tape import Tensor

__all__ = ["Recipe"]

E = TypeVar("E", bound=Engine[Any, Any])


class Recipe(Generic[E]):
    """A recipe around an engine. The caller owns the data, the schedule and ``is_first``."""

    _builder = "realize"  # the call after which it can step

    t_loss: Tensor | None
    t_labels: Tensor | None
    t_hp: Tensor | None

    def __init__(self, engine: E) -> None:
        self.engine = engine
        self.t_loss = self.t_labels = self.t_hp = None
        self.step_index = 0  # steps taken

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

    def _start_over(self) -> None:
        """Put a new engine in place of one that is half made; the memory it had taken is free."""
        self.engine = type(self.engine)(self.engine.backend)

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

    def _show(self) -> None:
        self.t_loss = self.engine.t_loss
        self.t_labels = self.engine.t_labels
        self.t_hp = self.engine.t_hp
