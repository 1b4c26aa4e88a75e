"""Log to Weights & Biases, with the figures and names of metrics.jsonl.

    toynn train gpt2 --report html,wandb --out runs/mine; wandb sync runs/mine/wandb/offline-run-*

The library's own environment variables control it: WANDB_MODE=online sends figures as they come,
WANDB_PROJECT names the project. Without WANDB_MODE nothing leaves the machine. A resumed run is a
new run there. Source: the reference of wandb.init, Run.log and Run.finish.
"""

import os
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from toynn.errors import CheckpointError, ConfigError

__all__ = ["WandbRun", "check_installed"]

PROJECT = "toynn"


def check_installed() -> None:
    """Raise ConfigError if the library of Weights & Biases is missing."""
    try:
        import wandb  # noqa: F401
    except ImportError as error:
        raise ConfigError(
            "a report for Weights & Biases needs its library, which is not installed: pip install "
            "wandb"
        ) from error


class WandbRun:
    """A new W&B run, with its files in our folder's wandb/. Raises CheckpointError."""

    def __init__(self, folder: Path, config: Mapping[str, Any]) -> None:
        import wandb
        from wandb.errors import Error

        self._folder, self._refusals = folder, (OSError, Error)
        try:
            self._run = wandb.init(
                project=None if os.environ.get("WANDB_PROJECT") else PROJECT,
                name=folder.absolute().name,
                dir=str(folder.absolute()),
                config=dict(config),
                mode=None if os.environ.get("WANDB_MODE") else "offline",
            )
        except self._refusals as error:
            raise self._refused(error) from error

    def write(self, step: int, figures: Mapping[str, float]) -> None:
        """Write the figures of a step. Raises CheckpointError."""
        told = {name: value for name, value in figures.items() if name != "iteration"}
        try:
            self._run.log(told, step=step)
        except self._refusals as error:
            raise self._refused(error) from error

    def _refused(self, error: Exception) -> CheckpointError:
        return CheckpointError(f"{self._folder}: wandb cannot take the figures: {error}")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            self._run.finish(exit_code=int(error is not None))
        except self._refusals as refused:
            if error is None:
                raise self._refused(refused) from refused
