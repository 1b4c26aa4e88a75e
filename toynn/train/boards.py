"""Boards: programs that get the figures of each report, in addition to metrics.jsonl."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from toynn.train import tensorboard, wandb

__all__ = ["BOARDS", "Board"]


class Board(NamedTuple):
    """A program that shows curves.

    Attributes
    ----------
    check
        Raises ConfigError if its library is missing.
    opened
        Opens a log, which is a context manager, for a run's folder, next step and identity. Its
        files go into a folder of the board's name.
    """

    check: Callable[[], None]
    opened: Callable[[Path, int, Mapping[str, Any]], Any]


#: By the name in --report.
BOARDS = {
    "tensorboard": Board(
        tensorboard.check_installed,
        lambda folder, step, _: tensorboard.EventFile(folder / "tensorboard", step),
    ),
    "wandb": Board(wandb.check_installed, lambda folder, _, config: wandb.WandbRun(folder, config)),
}
