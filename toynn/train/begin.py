"""What a Trainer settles before its loop: batches, length and learning rates."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from math import ceil
from typing import Any

from toynn.backends.config import alike
from toynn.data.batch import Batch
from toynn.data.jsonl import Dataset
from toynn.data.mixture import Mixture
from toynn.data.preference import PreferenceData
from toynn.distributed import Group
from toynn.errors import CheckpointError, ConfigError
from toynn.numerics.precision import get_float32_matmul_precision
from toynn.optim import AdamW
from toynn.optim.schedule import Schedule, usual_warmup
from toynn.options import compared
from toynn.train.checkpoint import Checkpoint
from toynn.train.feed import Cycle, as_batch
from toynn.train.options import LoopOptions
from toynn.train.state import Result

EVAL_BATCHES = 16

#: What a Trainer trains on.
Data = Dataset | PreferenceData | Mixture | Iterator[Batch] | list[Any]


@dataclass(frozen=True)
class Length:
    """The length of a run, as stored in checkpoints.

    Attributes
    ----------
    steps, batches
        The number of updates; the most batches that they draw, None for no limit.
    per_update
        Batches of one update, over all ranks.
    schedule
        The learning rates; None if the user gave a function.
    """

    steps: int
    batches: int | None
    per_update: int
    schedule: Schedule | None


@dataclass(frozen=True)
class Begun:
    """How a run was begun, and how far it has come.

    Attributes
    ----------
    ranks
        The number of processes at its start.
    length
        The intended length when its checkpoint was saved; None for a new run.
    done, drawn
        Updates done; batches that these updates used.
    not_better
        Evaluations in a row without a better one.
    result, feed
        The state of the loop, and the position in the data; None for a new run.
    """

    ranks: int
    length: Length | None = None
    done: int = 0
    drawn: int = 0
    not_better: int = 0
    result: Result = field(default_factory=Result)
    feed: dict[str, Any] | None = None

    @classmethod
    def of(cls, checkpoint: Checkpoint) -> "Begun":
        """Read it from a checkpoint. Raises CheckpointError for an invalid one."""
        try:
            state, length = checkpoint.state, checkpoint.state["plan"]
            feed, rates, batches = state["feed"], length["schedule"], length["batches"]
            result, ranks = Result.of(state["loop"]), int(state["ranks"])
            if ranks < 1:
                raise ValueError(f"ranks: expected at least 1; got {ranks}")
            return cls(
                ranks,
                Length(
                    int(length["steps"]),
                    None if batches is None else int(batches),
                    int(length["per_update"]),
                    None if rates is None else Schedule(**rates),
                ),
                int(result.iterations),
                int(feed["drawn"]) - int(result.part.batches),
                int(result.not_better),
                result,
                feed,
            )
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
            why = f"the saved state is bad: {type(error).__name__}: {error}"
            raise CheckpointError(f"{checkpoint.path}: cannot resume: {why}") from error


def source_of(
    recipe: Any, data: Data, valid: Iterable[Batch] | None, seed: int
) -> tuple[Iterator[Batch], Iterable[Batch]]:
    """Return training batches and validation batches. Raises TypeError for other objects."""
    if isinstance(valid, list | tuple):
        valid = [as_batch(batch) for batch in valid]
    if isinstance(data, Dataset | PreferenceData | Mixture):
        rows = data.rows_for(recipe.t_batch, recipe.t_seq)
        source: Iterator[Batch] = data.batches(rows, seed)
        valid = data.valid_batches(rows, EVAL_BATCHES) if valid is None else valid
    elif isinstance(data, list):
        source = Cycle(data)
    elif hasattr(data, "__next__"):
        source = data
    elif isinstance(data, Iterable) and not isinstance(data, Mapping | str):
        source = iter(data)
    else:
        raise TypeError(
            f"data: expected a Dataset, a list or an iterator of batches; got {type(data).__name__}"
        )
    return source, () if valid is None else valid


def begun_with(group: Group, checkpoint: Checkpoint | None) -> Begun:
    """Return, on all ranks, how rank 0's run was begun: its checkpoint, or None for a new run.

    Raises CheckpointError as ``Begun.of`` does.
    """
    return group.tell(Begun(group.size) if checkpoint is None else Begun.of(checkpoint))


def length_of(
    per_epoch: float | None,
    steps: int | None,
    epochs: float | None,
    per_update: int,
    begun: Begun,
) -> tuple[int, int | None]:
    """Return the number of steps, and the most batches that are drawn.

    The last update of an epoch may have fewer batches. So a run that is extended by epochs may take
    a step more than a run that had them from the start. Raises ConfigError.
    """
    if (steps is None) == (epochs is None):
        raise ConfigError("length of the run: give steps or epochs, one of the two")
    if steps is not None:
        return steps, None
    if per_epoch is None or epochs is None:
        raise ConfigError("epochs: the data have no known number of batches; give steps")
    if not 0 < epochs < 2**31:
        raise ConfigError(f"epochs must be above 0; got {epochs}")
    batches, length = max(1, ceil(epochs * per_epoch - 1e-9)), begun.length
    if length is not None and (length.batches, length.per_update) == (batches, per_update):
        return length.steps, batches
    return begun.done + ceil(max(0, batches - begun.drawn) / per_update), batches


def warmup_of(steps: int, begun: Begun) -> int:
    """Return the default number of warm-up steps; a resumed run keeps its own."""
    if begun.length is not None and begun.length.schedule is not None:
        return begun.length.schedule.warmup_steps
    return usual_warmup(steps)


def rates(
    schedule: str | Callable[[int], float],
    lr: float,
    steps: int,
    warmup: int | None,
    min_lr_ratio: float,
    begun: Begun,
) -> Callable[[int], float]:
    """Return a function from a step to its learning rate, also beyond ``steps``."""
    if not isinstance(schedule, str):
        return schedule
    rise = warmup_of(steps, begun) if warmup is None else warmup
    return Schedule(schedule, lr, steps, rise, min_lr_ratio)


def described(options: LoopOptions, optimizer: Any, schedule: Any) -> dict[str, Any]:
    """Return the settings of a run that must not change when it resumes, as JSON values."""
    return {
        **compared(options),
        "optimizer": asdict(optimizer)
        if isinstance(optimizer, AdamW)
        else type(optimizer).__name__,
        "schedule": compared(schedule)
        if isinstance(schedule, Schedule)
        else {"name": "a function"},
    }


def computed_with(recipe: Any) -> dict[str, str]:
    """Return what a recipe's exact numbers depend on: level, backend, precisions."""
    session = recipe.session
    backend = getattr(getattr(session, "backend", None), "name", "cpu")
    # A user's recipe may lack a tape.
    tape = getattr(session, "tape", None)
    return alike(backend, tape.precisions() if tape else {get_float32_matmul_precision()})


def extension(begun: Begun, length: Length) -> Iterator[str]:
    """Yield lines about the learning rates of a run that became longer.

    A schedule depends on the step and the number of steps: with more steps it falls more slowly.
    """
    before = begun.length
    if before is None or length.steps <= before.steps:
        return
    yield f"extended    from {before.steps} steps to {length.steps}; {begun.done} are done"
    if length.schedule is None or before.schedule is None:
        yield "rates       as the given function says"
        return
    rate = length.schedule
    now, then, last = rate(begun.done), before.schedule(begun.done), rate(length.steps - 1)
    if now == then:
        yield f"rates       {rate.name}: {now:.3g} as before in step {begun.done + 1}"
    else:
        yield (
            f"rates       {rate.name} over all {length.steps} steps: {now:.3g} in step "
            f"{begun.done + 1}, where {before.steps} steps had {then:.3g}"
        )
    yield f"            and {last:.3g} in the last step"
