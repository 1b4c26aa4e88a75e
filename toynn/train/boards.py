"""Boards: programs that get the figures of each report, with the names of metrics.jsonl.

    toynn train gpt2 --report html,tensorboard --out runs/mine; tensorboard --logdir runs
    toynn train gpt2 --report html,wandb --out runs/mine; wandb sync runs/mine/wandb/offline-run-*

Each program's own library writes its files, in a folder of the board's name in the run's folder.

A resumed run begins a new event file with a mark. The mark makes TensorBoard drop the earlier
file's events from that step on. For Weights & Biases it is a new run. WANDB_MODE=online sends
figures as they come, WANDB_PROJECT names the project. Without WANDB_MODE nothing leaves the
machine. Source: the reference of wandb.init, Run.log and Run.finish.
"""

import os
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from types import TracebackType
from typing import Any, ClassVar, Self

from toynn.errors import CheckpointError, ConfigError


class Board(ABC):
    """A program's log of a run, from a step on, with the run's identity. Raises CheckpointError.

    A board has a title, the library that it needs with the module that writes, and what an error
    says that it cannot do. `_open`, `_write` and `_close` may raise what is in `_refusals`.
    """

    title: ClassVar[str]
    library: ClassVar[str]
    module: ClassVar[str]
    fails: ClassVar[str]

    def __init__(self, folder: Path, step: int, config: Mapping[str, Any]) -> None:
        self._folder = folder
        self._refusals: tuple[type[Exception], ...] = (OSError,)
        with self._refused():
            self._open(step, config)

    @classmethod
    def check(cls) -> None:
        """Raise ConfigError if the library is missing."""
        try:
            import_module(cls.module)
        except ImportError as error:
            raise ConfigError(
                f"a report for {cls.title} needs its library, which is not installed: pip install "
                f"{cls.library}"
            ) from error

    def write(self, step: int, figures: Mapping[str, float]) -> None:
        """Write the figures of a step. Raises CheckpointError."""
        with self._refused():
            self._write(step, {k: value for k, value in figures.items() if k != "iteration"})

    @contextmanager
    def _refused(self) -> Iterator[None]:
        try:
            yield
        except self._refusals as error:
            why = getattr(error, "strerror", None) or error
            raise CheckpointError(f"{self._folder}: {self.fails}: {why}") from error

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            with self._refused():
                self._close(error)
        except CheckpointError:
            if error is None:
                raise

    @abstractmethod
    def _open(self, step: int, config: Mapping[str, Any]) -> None: ...

    @abstractmethod
    def _write(self, step: int, figures: Mapping[str, float]) -> None: ...

    @abstractmethod
    def _close(self, error: BaseException | None) -> None: ...


class TensorBoard(Board):
    """TensorBoard's event file."""

    title, library, fails = "TensorBoard", "tensorboard", "cannot write events"
    module = "tensorboard.summary.writer.event_file_writer"

    def _open(self, step: int, config: Mapping[str, Any]) -> None:
        from tensorboard.compat.proto import event_pb2, summary_pb2

        self._folder /= "tensorboard"
        self._event, self._summary = event_pb2.Event, summary_pb2.Summary
        self._writer = import_module(self.module).EventFileWriter(str(self._folder))
        self._add(step, session_log=event_pb2.SessionLog(status=event_pb2.SessionLog.START))

    def _write(self, step: int, figures: Mapping[str, float]) -> None:
        told = [self._summary.Value(tag=name, simple_value=v) for name, v in figures.items()]
        self._add(step, summary=self._summary(value=told))

    def _add(self, step: int, **what: Any) -> None:
        self._writer.add_event(self._event(wall_time=time.time(), step=step, **what))
        self._writer.flush()

    def _close(self, error: BaseException | None) -> None:
        self._writer.close()


class Wandb(Board):
    """A new run of Weights & Biases."""

    title, library, module = "Weights & Biases", "wandb", "wandb"
    fails = "wandb cannot take the figures"

    def _open(self, step: int, config: Mapping[str, Any]) -> None:
        import wandb
        from wandb.errors import Error

        self._refusals = (OSError, Error)
        self._run = wandb.init(
            project=None if os.environ.get("WANDB_PROJECT") else "toynn",
            name=self._folder.absolute().name,
            dir=str(self._folder.absolute()),
            config=dict(config),
            mode=None if os.environ.get("WANDB_MODE") else "offline",
        )

    def _write(self, step: int, figures: Mapping[str, float]) -> None:
        self._run.log(dict(figures), step=step)

    def _close(self, error: BaseException | None) -> None:
        self._run.finish(exit_code=int(error is not None))


#: By the name in --report.
BOARDS: dict[str, type[Board]] = {"tensorboard": TensorBoard, "wandb": Wandb}
