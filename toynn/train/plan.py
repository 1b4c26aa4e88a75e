"""What a Trainer is told, made into what the loop takes: batches, how long, at which rates."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict
from math import ceil
from typing import Any

from toynn.adamw import AdamW
from toynn.data.jsonl import Dataset
from toynn.data.mixture import Mixture
from toynn.data.preference import PreferenceData
from toynn.distributed import Group
from toynn.errors import ConfigError
from toynn.schedule import Schedule
from toynn.train.checkpoint import Checkpoint
from toynn.train.feed import Cycle
from toynn.train.options import LoopOptions
from toynn.train.protocols import Batch

__all__ = ["WARMUP", "begun_with", "described", "length_of", "rates", "source_of", "usual_warmup"]

WARMUP = 100  # steps, or a tenth of a shorter run
EVAL_BATCHES = 16


def source_of(
    recipe: Any,
    data: Dataset | PreferenceData | Mixture | Iterator[Batch] | list[Any],
    valid: Iterable[Batch] | None,
    seed: int,
) -> tuple[Iterator[Batch], Iterable[Batch]]:
    """Return training batches, and those to evaluate on."""
    if isinstance(data, Dataset | PreferenceData | Mixture):
        rows = data.rows_for(recipe.engine.t_batch, recipe.engine.t_seq)
        own: Iterable[Batch] = data.valid_batches(rows, EVAL_BATCHES)
        return data.batches(rows, seed), own if valid is None else valid
    if isinstance(data, list):
        data = Cycle(data)
    return data, () if valid is None else valid


def begun_with(group: Group, found: Checkpoint | None) -> int:
    """Return with how many processes a run was begun, or is: so an update stays as large."""
    return group.tell(group.size if found is None else int(found.state.get("ranks", 1)))


def length_of(
    per_epoch: float | None, steps: int | None, epochs: float | None, grad_accum: int
) -> tuple[int, int | None]:
    """Return how many steps there are to be, and how many batches are drawn at most.

    Raises ConfigError.
    """
    if (steps is None) == (epochs is None):
        raise ConfigError("how long: give steps or epochs, one of the two")
    if steps is not None:
        return steps, None
    if per_epoch is None or epochs is None:
        raise ConfigError("epochs: the data do not say how many batches they are; give steps")
    if not 0 < epochs < 2**31:
        raise ConfigError(f"epochs must be above 0; got {epochs}")
    batches = max(1, ceil(epochs * per_epoch - 1e-9))
    return ceil(batches / grad_accum), batches


def usual_warmup(steps: int) -> int:
    """Return the steps of the rise, where nobody says how many."""
    return min(WARMUP, steps // 10)


def rates(
    schedule: str | Callable[[int], float],
    lr: float,
    steps: int,
    warmup: int | None,
    min_lr_ratio: float,
) -> Callable[[int], float]:
    """Return the learning rate of each step."""
    if not isinstance(schedule, str):
        return schedule
    rise = usual_warmup(steps) if warmup is None else warmup
    return Schedule(schedule, lr, steps, rise, min_lr_ratio)


def described(options: LoopOptions, optimizer: Any, schedule: Any) -> dict[str, Any]:
    """Return what of a run changes its numbers, in values that JSON holds."""
    own = {name: value for name, value in asdict(options).items() if not name.startswith("log")}
    del own["save_every"], own["sample_every"]
    return own | {
        "optimizer": asdict(optimizer)
        if isinstance(optimizer, AdamW)
        else type(optimizer).__name__,
        "schedule": asdict(schedule) if isinstance(schedule, Schedule) else "a function",
    }
