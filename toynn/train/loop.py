"""The training loop, the same for every recipe, and for one process as for several.

    train
        report, evaluate
        repeat, until the steps are done, the data end, nothing improves, or a signal asks to stop:
            step        micro-batches: forward, backward; then one update
            intervals   at intervals: report, evaluate, keep the best, sample
            save        at intervals, at the end, and because of a signal

The loop yields events. It opens no file and prints nothing: whoever iterates it does that, between
its steps. Its state from step to step is a `Result` and the feed's position: with these and the
recipe restored, it continues exactly.
"""

import math
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from toynn.data.batch import Batch
from toynn.engines.engine import Engine
from toynn.errors import ConfigError, DataError, NonFiniteError
from toynn.optim import AdamW
from toynn.train.feed import Feed
from toynn.train.metrics import Report
from toynn.train.options import METRICS, LoopOptions
from toynn.train.ranks import Alone
from toynn.train.state import Figures, Means, Part, Result

WHOLE = "whole"  # key of what ``Learner.joined`` takes of a batch
PATIENCE = 5.0  # seconds that an evaluation may take after a signal asks to stop


@dataclass(frozen=True)
class Stepped:
    """A step was taken, in so many seconds; its update may have been skipped."""

    seconds: float


@dataclass(frozen=True)
class Evaluating:
    """An evaluation has done so many batches, of so many; 0: unknown."""

    done: int
    of: int


@dataclass(frozen=True)
class Best:
    """The recipe now has the best weights so far."""


@dataclass(frozen=True)
class Reported:
    """A report was made."""

    report: Report


@dataclass(frozen=True)
class Sampled:
    """The model wrote a text after so many steps."""

    iteration: int
    text: str


@dataclass(frozen=True)
class Save:
    """The state is to be saved, for a run that resumes here; ``last``: no step comes after it."""

    state: dict[str, Any]
    last: bool


Event = Stepped | Evaluating | Best | Reported | Sampled | Save


@dataclass(frozen=True)
class Learner:
    """What is trained, and how.

    Attributes
    ----------
    schedule
        Returns the learning rate of a step.
    measure
        Returns the figures of a validation batch, such as "loss" and "accuracy": means over its
        rows, or pairs (sum, count). ``best_by`` chooses the best weights by one of them.
    joined
        Returns further figures, which are no means, of what ``measure`` returned as WHOLE for each
        batch of an evaluation.
    sample
        Yields a text of the model, in pieces.
    ranks
        The processes that train it.
    """

    recipe: Engine[Any]
    optimizer: AdamW
    schedule: Callable[[int], float]
    measure: Callable[[Any], Figures]
    joined: Callable[[Sequence[Any]], Mapping[str, float]] = lambda _: {}
    sample: Callable[[], Iterable[str]] = tuple
    ranks: Alone = field(default_factory=Alone)


def train(
    model: Learner, feed: Feed, options: LoopOptions, state: Result
) -> Generator[Event, None, None]:
    """Train; yield what happens. A signal ends it early, with the best weights kept.

    It ends after the current step, and after an evaluation that finds the best weights. A step or
    an evaluation that takes longer than PATIENCE ends after its current micro-batch.

    Raises NonFiniteError as the options say, DataError if no batch or no label has loss,
    ConfigError if an evaluation lacks a metric of the options.
    """
    model.recipe.session.max_grad_norm = options.max_grad_norm
    state.began = time.perf_counter() - state.seconds
    with model.ranks.interrupt as interrupt:
        if state.due:
            yield from intervals(model, feed, options, state)
        else:
            yield from sample(model, state)
        if not state.iterations and feed.ended():
            raise DataError("the data end before the first batch: nothing to train on")
        stops = interrupt.requested
        while not (stops or is_last(feed, options, state)):
            begin = time.perf_counter()
            whole = step(model, feed, options, state)
            seconds = time.perf_counter() - begin
            state.window.seconds += seconds
            if whole:
                yield Stepped(seconds)
            state.due, evaluated = whole, False
            if not interrupt.requested:
                evaluated = yield from intervals(model, feed, options, state)
            stops = interrupt.requested  # a signal from here on ends it after the next save
            if stops:
                # The saved state says that the report is due: the resumed run makes it.
                if not state.saved:
                    state.saved = True
                    yield save(feed, resumable(feed, state))
                if not evaluated:
                    yield from report(model, feed, options, state, evaluates=True)
            elif options.save_every:
                last = is_last(feed, options, state)
                if last or state.iterations % options.save_every == 0:
                    if not (options.eval_every or evaluated):
                        yield from evaluate(model, feed, options, state)  # keeps the newest weights
                    yield save(feed, resumable(feed, state), last)
                    stops = interrupt.requested
        state.interrupted, state.signal = interrupt.requested, interrupt.number
    state.empty_batches = feed.empty
    state.seconds = time.perf_counter() - state.began


def is_last(feed: Feed, options: LoopOptions, state: Result) -> bool:
    """Return whether this was the last step."""
    state.stopped_early = 0 < options.early_stopping <= state.not_better
    return state.iterations >= options.steps or state.stopped_early or feed.ended()


# -- A step ------------------------------------------------------------------------------------


def step(model: Learner, feed: Feed, options: LoopOptions, state: Result) -> bool:
    """Take one step: an update from its micro-batches, or from those left; it may be skipped.

    Return False if a signal has waited too long, and some micro-batches are still to come. Raises
    NonFiniteError as the options say.
    """
    recipe, ranks, part, window = model.recipe, model.ranks, state.part, state.window
    rate, is_first = model.schedule(state.iterations), state.updates == 0
    row = np.array(model.optimizer.hp_for_step(state.updates), np.float32)
    row[0] = rate
    try:
        for each, updates in ranks.share(feed, part):
            batch = each.read() if isinstance(each, Batch) else each
            part.filling.add(batch)
            loss = recipe.train(batch, row, is_first) if updates else recipe.accumulate(batch)
            part.add(batch.rows, loss)
            told = recipe if hasattr(recipe, "figures") else batch
            window.figures.add(getattr(told, "figures", {}), batch.rows)
            if not updates and ranks.interrupt.waited > PATIENCE:
                return False
        ranks.add(part, row, is_first)
    except NonFiniteError as error:
        _skip(error, options, state)
    else:
        state.updates += 1
        state.trained_tokens += part.tokens
        window.loss += part.loss
        window.tokens += part.tokens
    state.iterations += 1
    window.filling.extend(part.filling)
    window.rate, window.norm = rate, float(recipe.session.grad_norm)
    state.part = Part()
    return True


def _skip(error: NonFiniteError, options: LoopOptions, state: Result) -> None:
    """Count a skipped update. Raises NonFiniteError if it may not be skipped."""
    where = f"step {state.iterations + 1}: {error}"
    if options.on_nonfinite == "stop":
        raise NonFiniteError(f"{where}; try a lower learning rate") from error
    state.skipped_updates += 1
    if state.skipped_updates > options.max_nonfinite:
        raise NonFiniteError(
            f"{where}; {options.max_nonfinite} updates were skipped before"
        ) from error


# -- At intervals ------------------------------------------------------------------------------


def intervals(
    model: Learner, feed: Feed, options: LoopOptions, state: Result
) -> Generator[Event, None, bool]:
    """Report, evaluate and sample, as is due after a step; return whether it evaluated."""
    done = state.iterations
    evaluates = done == 0 or is_last(feed, options, state) or _is_due(done, options.eval_every)
    if evaluates or _is_due(done, options.log_every):
        yield from report(model, feed, options, state, evaluates)
    state.due = False
    state.sample_due = done > 0 and _is_due(done, options.sample_every)
    yield from sample(model, state)
    return evaluates


def _is_due(done: int, every: int) -> bool:
    return every > 0 and done % every == 0


def report(
    model: Learner, feed: Feed, options: LoopOptions, state: Result, evaluates: bool
) -> Iterator[Event]:
    """Report the steps since the last report, after an evaluation if it is due."""
    figures = (yield from evaluate(model, feed, options, state)) if evaluates else {}
    yield Reported(state.report(figures))


def sample(model: Learner, state: Result) -> Iterator[Event]:
    """Let the model write a text if one is due; after a signal, the resumed run does it."""
    stopped = model.ranks.interrupt
    if not state.sample_due or stopped.requested:
        return
    parts = []
    for part in model.sample():
        if stopped.requested:
            return
        parts.append(part)
    state.sample_due = False
    yield Sampled(state.iterations, "".join(parts))


def resumable(feed: Feed, state: Result) -> dict[str, Any]:
    """Return what a run resumes from, as JSON values."""
    return {"loop": state.state(), "feed": feed.state}


def save(feed: Feed, state: dict[str, Any], last: bool = False) -> Save:
    """Return the event to save a resumable state. Raises if a mapped file has changed."""
    feed.check()
    return Save(state, last)


# -- Evaluation --------------------------------------------------------------------------------


def evaluate(
    model: Learner, feed: Feed, options: LoopOptions, state: Result
) -> Generator[Event, None, dict[str, float]]:
    """Return means over the validation labels; yield ``Best`` if the metric is the best.

    If a signal cuts the evaluation short, the means are over the batches so far. The state that is
    saved is then the one before the evaluation. Raises ConfigError if a metric is missing.
    """
    feed.check()
    ranks, begin, before = model.ranks, time.perf_counter(), resumable(feed, state)
    means, by, losses, whole = Means(), list[float](), list[float](), list[Any]()
    joined: Mapping[str, float] = {}
    metric, more_is_better = METRICS[options.metrics[0]]
    for done, batches in feed.turns(ranks.size) if options.eval_every else ():
        if ranks.agree(_is_late(model, state, done, begin)):
            if state.iterations and not state.saved:
                state.saved = True
                yield save(feed, before)
            break
        yield Evaluating(done, feed.valid_batches)
        measured = None
        if ranks.rank < len(batches):  # each rank evaluates one of them
            batch = batches[ranks.rank]
            measured = model.measure(batch), batch.rows, getattr(batch, "source", None)
        for measures, rows, source in ranks.gather(measured):
            figures: dict[str, Any] = {**measures}
            whole.append(figures.pop(WHOLE, None))
            if source is not None:
                figures[f"loss/{source}"] = figures["loss"]
            means.add(figures, rows)
            for name, weight, sums in (
                (metric, -rows if more_is_better else rows, by),
                ("loss", rows, losses),
            ):
                figure = figures.get(name)
                if figure is not None and not isinstance(figure, tuple):
                    sums.append(figure * weight)
    else:
        joined = model.joined(whole) if whole else {}
    averages = {**means.all(), **joined}
    if metric in joined:  # of all batches; an evaluation that was cut short has none
        by = [-averages[metric] if more_is_better else averages[metric]]
    if averages and not ranks.interrupt.requested:
        _check_metrics(averages, options)
    if _is_best(averages, by, losses, state):
        yield Best()
    if averages and "perplexity" in options.metrics:
        averages["text/perplexity"] = math.exp(min(averages["loss"], 700.0))
    return averages


def _is_late(model: Learner, state: Result, done: int, begin: float) -> bool:
    """Return whether a signal has waited too long for an evaluation that began at ``begin``.

    With trained weights, at least one batch is evaluated, however busy the machine is.
    """
    interrupt = model.ranks.interrupt
    if state.iterations == 0:  # nothing is trained yet: the figures are not needed
        return interrupt.requested
    return done > 0 and min(interrupt.waited, time.perf_counter() - begin) > PATIENCE


def _check_metrics(figures: Mapping[str, float], options: LoopOptions) -> None:
    """Raise ConfigError if an evaluation lacks a metric of the options."""
    for name in options.metrics:
        if METRICS[name][0] not in figures:
            raise ConfigError(
                f"best_by {options.best_by}: an evaluation has no {METRICS[name][0]}; it has "
                f"{', '.join(figures)}"
            )


def _is_best(
    figures: Mapping[str, float], by: list[float], losses: list[float], state: Result
) -> bool:
    """Return whether an evaluation is the best so far, and note it.

    ``by`` and ``losses`` are the metric and the loss of each batch. If a signal cut the evaluation
    short, they are compared with the best weights' over the same batches. Of evaluations with the
    same metric, that of the lower loss is better; if the losses are the same, too, the later
    weights are kept. Without an evaluation, the newest weights are the best.
    """
    now, best = _standing(by, losses), (math.inf, math.inf)
    if state.best_losses:
        best = _standing(state.best_losses[: len(by)], state.tie_losses[: len(losses)])
    if figures and not (by and now <= best):
        state.not_better += 1
        return False
    state.best_iteration = state.iterations
    state.not_better = state.not_better + 1 if figures and now == best else 0
    if by:
        state.val_loss = figures.get("loss", math.inf)
        state.best_losses, state.tie_losses = by, losses
    return True


def _standing(metric: Sequence[float], losses: Sequence[float]) -> tuple[float, float]:
    """Return what weights are compared by: sums of the metric, and of the loss; less is better.

    The metric is rounded, since sums of equal counts may differ in their last bits.
    """
    return round(sum(metric), 6), sum(losses)
