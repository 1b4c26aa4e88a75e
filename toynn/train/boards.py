"""Boards: programs beside metrics.jsonl that are told the figures of each report."""

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
        Raises ConfigError where its library is missing.
    opened
        Makes what is written to, a context manager, of a run's folder, the first step that comes
        and what is known of the run. Its files are in a folder of the board's name.
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
