"""The training loop, the same for every recipe.

    evaluate
    repeat: accumulate micro-batches, step, and now and then report, evaluate, keep the best
    until the steps are done or a signal asks to stop

The loop knows a recipe, an optimizer and a schedule by the protocols below, and files not at all:
``on_report`` and ``on_best`` are functions that it calls.
"""

import math
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from toynn.data.batch import IGNORED
from toynn.errors import ConfigError, DataError, NonFiniteError
from toynn.train.interrupt import Interrupt
from toynn.train.metrics import Report, peak_memory

__all__ = ["Batch", "Loop", "LoopOptions", "Recipe", "Result"]

PATIENCE = 5.0  # seconds that an evaluation may still take once a signal asks to stop
MAX_EMPTY_BATCHES = 1000  # in a row: by then the data, not chance, is to blame

Floats = NDArray[np.float32]
Array = NDArray[Any]


class Batch(Protocol):
    """What one step is fed: three arrays, which the recipe takes in this order."""

    @property
    def rows(self) -> int:
        """How many labels count."""

    def __iter__(self) -> Iterator[Array]:
        """Return inputs, positions and labels."""


class Session(Protocol):
    """The part of a session that the loop touches."""

    max_grad_norm: float | None

    @property
    def grad_norm(self) -> float:
        """Norm of the last update's gradient before clipping."""


class Engine(Protocol):
    """The part of an engine that the loop touches."""

    @property
    def session(self) -> Session:
        """The session that holds the weights."""


class Recipe(Protocol):
    """A model with its training step."""

    @property
    def engine(self) -> Engine:
        """The model that is trained."""

    def step(
        self, inputs: Array, positions: Array, labels: Array, hp: Floats, is_first: bool, /
    ) -> float:
        """Add this batch's gradients and update the weights; return its loss before that.

        is_first zeroes the moments; gradients that ``accumulate`` has left are kept. Raises
        NonFiniteError, with weights and moments untouched, when a gradient is not finite.
        """

    def accumulate(self, inputs: Array, positions: Array, labels: Array, /) -> float:
        """Add this batch's gradients, times its labels, to the next step's; return its loss."""

    def evaluate(self, inputs: Array, positions: Array, labels: Array, /) -> float:
        """Return the batch's loss: the mean over the labels that count. Nothing changes."""


class Optimizer(Protocol):
    """What makes the hyper-parameter row."""

    def hp_for_step(self, k: int, /) -> Floats:
        """Return the seven slots for update k, counted from 0."""


@dataclass(frozen=True)
class LoopOptions:
    """How long, and how often what."""

    steps: int
    grad_accum: int = 1
    max_grad_norm: float | None = 1.0
    log_every: int = 10
    eval_every: int = 250
    on_nonfinite: Literal["stop", "skip"] = "stop"
    max_nonfinite: int = 10  # updates that "skip" may skip in one run

    def __post_init__(self) -> None:
        for name in ("steps", "grad_accum", "log_every", "eval_every"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} must be at least 1; got {getattr(self, name)}")
        if self.max_grad_norm is not None and not self.max_grad_norm > 0:
            raise ConfigError(f"max_grad_norm must be above 0, or None; got {self.max_grad_norm}")
        if self.on_nonfinite not in ("stop", "skip"):
            raise ConfigError(f'on_nonfinite must be "stop" or "skip"; got {self.on_nonfinite!r}')


@dataclass
class Result:
    """What a run came to."""

    iterations: int = 0
    trained_tokens: int = 0
    seconds: float = 0.0
    train_loss: float = math.nan  # mean over the steps of the last report
    val_loss: float = math.inf  # the best one
    best_iteration: int = 0
    empty_batches: int = 0  # drawn and skipped: no label counted
    skipped_updates: int = 0  # a gradient was not finite
    interrupted: bool = False
    reports: list[Report] = field(default_factory=list)


def _nothing(_: Any = None) -> None:
    """Do nothing: the callback of who wants none."""


class Loop:
    """One run of training; ``run`` may be called once.

    ``measure`` returns the figures of a validation batch, means over its rows: "loss", by which the
    best weights are chosen, and "accuracy", if it has one. The default is ``recipe.evaluate``.
    """

    def __init__(
        self,
        recipe: Recipe,
        batches: Iterator[Batch],
        optimizer: Optimizer,
        schedule: Callable[[int], float],
        options: LoopOptions,
        *,
        valid: Iterable[Batch] = (),
        measure: Callable[[Any], Mapping[str, float]] | None = None,
        on_step: Callable[[], object] = _nothing,
        on_report: Sequence[Callable[[Report], object]] = (),
        on_best: Callable[[], object] = _nothing,
    ) -> None:
        self.recipe, self.batches, self.valid = recipe, batches, valid
        self.optimizer, self.schedule, self.options = optimizer, schedule, options
        self.measure = measure or self._loss_only
        self.on_step, self.on_report, self.on_best = on_step, on_report, on_best
        self.result = Result()
        self._interrupt = Interrupt()
        self._best_losses: list[float] = []  # of the validation batches, each a sum over its rows
        self._updates = 0
        self._since = _Window()
        self._start = time.perf_counter()

    def run(self) -> Result:
        """Train; return early, with the best weights kept, when a signal asks for it.

        The step is finished, and so is the evaluation that says which weights are the best; if that
        takes longer than PATIENCE, only over the batches until then.
        """
        options, result = self.options, self.result
        self.recipe.engine.session.max_grad_norm = options.max_grad_norm
        self._start = time.perf_counter()
        with self._interrupt as interrupt:
            self._report(evaluate=True)
            stop = interrupt.requested
            while not stop:
                self._iterate()
                self.on_step()
                done = result.iterations
                last = done == options.steps
                evaluate = last or interrupt.requested or done % options.eval_every == 0
                if evaluate or done % options.log_every == 0:
                    self._report(evaluate)
                # Not before these weights are evaluated: they may be the best.
                stop = last or (evaluate and interrupt.requested)
            result.interrupted = interrupt.requested
        result.seconds = time.perf_counter() - self._start
        return result

    def _iterate(self) -> None:
        """Take one step of the schedule: an update from grad_accum batches, or a skipped one."""
        begin = time.perf_counter()
        result, since = self.result, self._since
        rate = self.schedule(result.iterations)
        hp = np.array(self.optimizer.hp_for_step(self._updates), np.float32)
        hp[0] = rate
        loss, tokens = 0.0, 0  # the sum over tokens
        for _ in range(self.options.grad_accum - 1):
            batch = self._draw()
            loss += self.recipe.accumulate(*batch) * batch.rows
            tokens += batch.rows
        inputs, positions, labels = batch = self._draw()
        result.iterations += 1
        first = self._updates == 0
        try:
            loss += self.recipe.step(inputs, positions, labels, hp, first) * batch.rows
        except NonFiniteError as error:
            self._skip(error)
        else:
            self._updates += 1
            tokens += batch.rows
            result.trained_tokens += tokens
            since.loss += loss
            since.tokens += tokens
        since.rate = rate
        since.seconds += time.perf_counter() - begin

    def _draw(self) -> Batch:
        """Return the next batch in which a label counts."""
        for _ in range(MAX_EMPTY_BATCHES):
            batch = next(self.batches)
            if batch.rows:
                return batch
            self.result.empty_batches += 1
        raise DataError(f"no label counts in any of {MAX_EMPTY_BATCHES} batches: all are {IGNORED}")

    def _skip(self, error: NonFiniteError) -> None:
        result, options = self.result, self.options
        where = f"step {result.iterations}: {error}"
        if options.on_nonfinite == "stop":
            raise NonFiniteError(f"{where}; try a lower learning rate") from error
        result.skipped_updates += 1
        if result.skipped_updates > options.max_nonfinite:
            raise NonFiniteError(
                f"{where}; {options.max_nonfinite} updates were skipped before"
            ) from error

    def _report(self, evaluate: bool) -> None:
        result, since = self.result, self._since
        figures = self._evaluate() if evaluate else {}
        trained = since.tokens > 0
        if trained:
            result.train_loss = since.loss / since.tokens
        report = Report(
            iteration=result.iterations,
            trained_tokens=result.trained_tokens,
            time=time.perf_counter() - self._start,
            train_loss=result.train_loss if trained else None,
            learning_rate=since.rate,
            grad_norm=float(self.recipe.engine.session.grad_norm) if trained else None,
            tokens_per_second=since.tokens / since.seconds if trained else None,
            peak_memory=peak_memory(),
            val_loss=figures.get("loss"),
            val_accuracy=figures.get("accuracy"),
            skipped_updates=result.skipped_updates or None,
        )
        self._since = _Window()
        result.reports.append(report)
        for tell in self.on_report:
            tell(report)

    def _loss_only(self, batch: Batch) -> dict[str, float]:
        return {"loss": self.recipe.evaluate(*batch)}

    def _evaluate(self) -> dict[str, float]:
        """Return means over the validation labels; hand the weights on if the loss is the best.

        Without validation data the newest weights are the best. If a signal cuts the evaluation
        short, the means are over the batches so far, and compared with the best ones over those.
        """
        result, begin = self.result, time.perf_counter()
        totals: dict[str, float] = defaultdict(float)
        losses: list[float] = []
        rows = 0
        for batch in self.valid:
            if self._is_late(begin):
                break
            measured = self.measure(batch)
            for name, figure in measured.items():
                totals[name] += figure * batch.rows
            losses.append(measured["loss"] * batch.rows)
            rows += batch.rows
        figures = {name: total / rows for name, total in totals.items()}
        best = sum(self._best_losses[: len(losses)]) if self._best_losses else math.inf
        if not losses or sum(losses) < best:
            result.best_iteration = result.iterations
            if losses:
                result.val_loss, self._best_losses = figures["loss"], losses
            self.on_best()
        return figures

    def _is_late(self, begin: float) -> bool:
        """Say whether a signal has been waiting too long for an evaluation begun at a time."""
        if self.result.iterations == 0:  # nothing is trained yet: nobody waits for the figures
            return self._interrupt.requested
        return min(self._interrupt.waited, time.perf_counter() - begin) > PATIENCE


@dataclass
class _Window:
    """What has gathered since the last report."""

    loss: float = 0.0  # summed over tokens
    tokens: int = 0
    seconds: float = 0.0
    rate: float | None = None
