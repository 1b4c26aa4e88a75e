"""The training loop, the same for every recipe.

    evaluate
        repeat: accumulate micro-batches, step; at intervals report, evaluate, keep the best, save
        until the steps are done, the data end, nothing improves, or a signal asks to stop

The loop uses a recipe, its data and an optimizer, and no files: it calls
``on_report``, ``on_best`` and ``on_save``. Its state from step to step is in ``result`` and
``feed``: with these and the recipe restored, it continues exactly.
"""

import math
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence, Sized
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray

from toynn.data.batch import Batch
from toynn.engines.engine import Engine
from toynn.errors import CheckpointError, ConfigError, DataError, NonFiniteError
from toynn.optim import AdamW
from toynn.system.machine import peak_memory
from toynn.train.feed import Feed, made
from toynn.train.interrupt import Interrupt
from toynn.train.metrics import Report
from toynn.train.options import METRICS, Figures, LoopOptions, Means, Part, Result, Window

__all__ = ["Loop"]

PATIENCE = 5.0  # seconds that an evaluation may take after a signal asks to stop

State = dict[str, Any]


def _standing(metric: Sequence[float], losses: Sequence[float]) -> tuple[float, float]:
    """Return what weights are compared by: sums of the metric, and of the loss; less is better.

    The metric is rounded, since sums of equal counts may differ in their last bits.
    """
    return round(sum(metric), 6), sum(losses)


def _nothing(_: Any = None) -> None:
    """Do nothing: the default callback."""


class Loop:
    """One run of training; ``run``, or ``reports``, may be called once.

    Parameters
    ----------
    measure
        Returns the figures of a validation batch, such as "loss" and "accuracy": means over its
        rows, or pairs (sum, count). ``options.best_by`` chooses the best weights by one of them.
        The default is ``recipe.evaluate``.
    check
        Called before each evaluation and save; raises if a mapped file has changed.
    on_save
        Gets the state of the loop, as ``resume`` takes it.
    on_sample
        Returns whether it has finished: a signal may have cut it short.
    """

    def __init__(
        self,
        recipe: Engine[Any, Any],
        batches: Iterator[Batch],
        optimizer: AdamW,
        schedule: Callable[[int], float],
        options: LoopOptions,
        *,
        valid: Iterable[Batch] = (),
        measure: Callable[[Any], Figures] | None = None,
        check: Callable[[], object] = _nothing,
        on_step: Callable[[], object] = _nothing,
        on_report: Sequence[Callable[[Report], object]] = (),
        on_best: Callable[[], object] = _nothing,
        on_save: Callable[[State], object] = _nothing,
        on_sample: Callable[[], bool] = lambda: True,
        on_evaluating: Callable[[int, int], object] = lambda done, of: None,
    ) -> None:
        self.recipe, self.valid = recipe, valid
        self.feed = Feed(batches, options.batches)
        self.optimizer, self.schedule, self.options = optimizer, schedule, options
        self.measure = measure or self._loss_only
        self.check, self.on_step = check, on_step
        self.on_report, self.on_best, self.on_save = on_report, on_best, on_save
        self.on_sample, self.on_evaluating = on_sample, on_evaluating
        self.result = Result()
        self.ranks = 1  # number of processes when the run began
        self._interrupt = Interrupt()
        self._saved = False  # whether a signal has made it save
        self._start = time.perf_counter()

    @property
    def stopping(self) -> bool:
        """Whether a signal has asked to stop."""
        return self._interrupt.requested

    def resume(self, state: State, reports: Iterable[Report] = ()) -> None:
        """Continue from a saved state; the recipe must have been restored.

        Raises CheckpointError for an invalid state.
        """
        try:
            self.feed.state = state["feed"]
            self.ranks = state.get("ranks", 1)
            self.result = Result.of(state["loop"], list(reports))
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
            why = f"the saved state is bad: {type(error).__name__}: {error}"
            raise CheckpointError(f"cannot resume: {why}") from error

    def state(self) -> State:
        """Return what ``resume`` takes."""
        self.result.seconds = time.perf_counter() - self._start
        return {"loop": self.result.state(), "feed": self.feed.state, "ranks": self.ranks}

    @property
    def per_update(self) -> int:
        """The number of batches of an update: the same for any number of processes."""
        return self.options.per_update(self.ranks)

    def run(self) -> Result:
        """Train; return early, with the best weights kept, if a signal asks for it.

        Then the current step and the evaluation that finds the best weights are finished first. If
        one takes longer than PATIENCE, only its current micro-batch is. Raises what ``reports``
        does.
        """
        for _ in self.reports():
            pass
        return self.result

    def reports(self) -> Iterator[Report]:
        """Train as ``run`` does, and yield each report.

        Raises NonFiniteError as the options say, DataError if no batch or no label has loss,
        ConfigError if an evaluation lacks a metric of the options.
        """
        options, result = self.options, self.result
        self.recipe.session.max_grad_norm = options.max_grad_norm
        self._start = time.perf_counter() - result.seconds
        with self._interrupt as interrupt:
            if result.due:
                yield from self._scheduled(self.is_last())
            self._sample()
            if not result.iterations and self.feed.ended():
                raise DataError("the data end before the first batch: nothing to train on")
            while not (interrupt.requested or self.is_last()):
                whole = self._iterate()
                if whole:
                    self.on_step()
                yield from self._after(whole)
            result.interrupted, result.signal = interrupt.requested, interrupt.number
        result.empty_batches = self.feed.empty
        result.seconds = time.perf_counter() - self._start

    # -- When ----------------------------------------------------------------------------------

    def is_last(self) -> bool:
        """Return whether this was the last step."""
        result, options = self.result, self.options
        result.stopped_early = 0 < options.early_stopping <= result.not_better
        return result.iterations >= options.steps or result.stopped_early or self.feed.ended()

    def _scheduled(self, last: bool) -> Generator[Report, None, bool]:
        """Make the report that is due after this step, if any; return whether it evaluates."""
        done, options = self.result.iterations, self.options
        evaluate = done == 0 or last or (options.eval_every > 0 and done % options.eval_every == 0)
        if evaluate or done % options.log_every == 0:
            yield self._report(evaluate)
        self.result.due = False
        self.result.sample_due = bool(
            done and options.sample_every and done % options.sample_every == 0
        )
        self._sample()
        return evaluate

    def _sample(self) -> None:
        """Write a sample if one is due; after a stop request, the resumed run does it."""
        if self.result.sample_due and not self._interrupt.requested:
            self.result.sample_due = not self.on_sample()

    def _after(self, whole: bool) -> Iterator[Report]:
        """Report, evaluate and save, as due after a step or part of a step."""
        result, options, interrupt = self.result, self.options, self._interrupt
        result.due = whole
        last = whole and self.is_last()
        evaluated = False
        if not interrupt.requested:
            evaluated = yield from self._scheduled(last)
        if interrupt.requested:
            # The saved state says that the report is due: the resumed run makes it.
            self._save(self.state())
            if not evaluated:
                yield self._report(evaluate=True)
        elif options.save_every and (
            result.iterations % options.save_every == 0 or self.is_last()  # by what it evaluated
        ):
            if not (options.eval_every or evaluated):
                self._evaluate()  # keeps the newest weights
            self.check()
            self.on_save(self.state())

    def _save(self, state: State) -> None:
        """Save because of a signal, once."""
        if not self._saved:
            self.check()
            self.on_save(state)
            self._saved = True

    # -- A step --------------------------------------------------------------------------------

    def _iterate(self) -> bool:
        """Take one step: an update from its batches, or from those left; it may be skipped.

        Return False if a signal has waited too long, and some of the batches are still to come.
        """
        begin = time.perf_counter()
        result, since, part = self.result, self.result.window, self.result.part
        rate, hp = self._row()
        while True:
            batch = next(self.feed)
            if part.batches == self.per_update - 1 or self.feed.ended():
                break
            part.loss += self.recipe.accumulate(batch) * batch.rows
            since.add_figures(getattr(self.recipe, "figures", {}))
            part.tokens += batch.rows
            part.batches += 1
            since.filling.add(batch)
            if self._interrupt.waited > PATIENCE:
                since.seconds += time.perf_counter() - begin
                return False
        since.filling.add(batch)
        with self._update(part.tokens + batch.rows, rate):
            loss = self.recipe.train(batch, hp, result.updates == 0)
            since.loss += part.loss + loss * batch.rows
        since.seconds += time.perf_counter() - begin
        return True

    def _row(self) -> tuple[float, NDArray[np.float32]]:
        """Return the learning rate of the next update, and its row of AdamW."""
        rate = self.schedule(self.result.iterations)
        hp = np.array(self.optimizer.hp_for_step(self.result.updates), np.float32)
        hp[0] = rate
        return rate, hp

    @contextmanager
    def _update(self, tokens: int, rate: float) -> Iterator[None]:
        """Count the update that the body makes; skip it if its gradient is not finite."""
        result, since = self.result, self.result.window
        result.iterations += 1
        result.part = Part()
        try:
            yield
        except NonFiniteError as error:
            self._skip(error)
        else:
            since.add_figures(getattr(self.recipe, "figures", {}))
            result.updates += 1
            result.trained_tokens += tokens
            since.tokens += tokens
        since.rate, since.norm = rate, float(self.recipe.session.grad_norm)

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

    # -- Reports -------------------------------------------------------------------------------

    def _report(self, evaluate: bool) -> Report:
        result, since = self.result, self.result.window
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
            grad_norm=since.norm if trained else None,
            tokens_per_second=since.tokens / since.seconds if trained else None,
            peak_memory=peak_memory(),
            val_loss=figures.get("loss"),
            val_accuracy=figures.get("accuracy"),
            skipped_updates=result.skipped_updates or None,
            figures=since.means() | {f"val_{k}": v for k, v in figures.items() if "/" in k} or None,
            **since.filling.figures(),
        )
        result.window = Window()
        result.reports.append(report)
        for tell in self.on_report:
            tell(report)
        return report

    def _loss_only(self, batch: Batch) -> dict[str, float]:
        return {"loss": self.recipe.evaluate(batch)}

    def _evaluate(self) -> dict[str, float]:
        """Return means over the validation labels; call ``on_best`` if the metric is the best.

        Of evaluations with the same metric, that of the lower loss is better; if the losses are the
        same, too, the later weights are kept. Without validation data or evaluations, the newest
        weights are the best. If a signal cuts the evaluation short, the means are over the batches
        so far, and are compared with the best weights' means over the same batches. The saved state
        is then the one before the evaluation.
        """
        self.check()
        result, begin, before = self.result, time.perf_counter(), self.state()
        means = Means()
        by: list[float] = []  # for each batch that has the metric
        losses: list[float] = []
        name_of_best, more_is_better = METRICS[self.options.metrics[0]]
        for measured, count in self._measured(begin, before):
            means.add(measured, count)
            for name, weight, sums in (
                (name_of_best, -count if more_is_better else count, by),
                ("loss", count, losses),
            ):
                figure = measured.get(name)
                if figure is not None and not isinstance(figure, tuple):
                    sums.append(figure * weight)
        figures = means.all()
        now, best = _standing(by, losses), (math.inf, math.inf)
        if result.best_losses:
            best = _standing(result.best_losses[: len(by)], result.tie_losses[: len(losses)])
        if figures and not self._interrupt.requested:
            self._check_measured(figures)
        if not figures or (by and now <= best):
            result.best_iteration = result.iterations
            result.not_better = result.not_better + 1 if figures and now == best else 0
            if by:
                result.val_loss = figures.get("loss", math.inf)
                result.best_losses, result.tie_losses = by, losses
            self.on_best()
        else:
            result.not_better += 1
        if "perplexity" in self.options.metrics and figures:
            figures["text/perplexity"] = math.exp(min(figures["loss"], 700.0))
        return figures

    def _check_measured(self, figures: Mapping[str, float]) -> None:
        """Raise ConfigError if an evaluation lacks a metric of the options."""
        for name in self.options.metrics:
            if METRICS[name][0] not in figures:
                raise ConfigError(
                    f"best_by {self.options.best_by}: an evaluation has no {METRICS[name][0]}; it "
                    f"has {', '.join(figures)}"
                )

    def _measured(self, begin: float, before: State) -> Iterator[tuple[Figures, int]]:
        """Yield figures and rows of the validation batches, until a signal has waited too long."""
        count = len(self.valid) if isinstance(self.valid, Sized) else 0
        for done, batch in enumerate(map(made, self.valid) if self.options.eval_every else ()):
            if self._is_late(begin, done):
                if self.result.iterations:
                    self._save(before)
                return
            self.on_evaluating(done, count)
            yield self._figures(batch), batch.rows

    def _figures(self, batch: Batch) -> Figures:
        """Return the figures of a batch; for a mixture also the loss under the source's name."""
        found, source = self.measure(batch), getattr(batch, "source", None)
        return found if source is None else {**found, f"loss/{source}": found["loss"]}

    def _is_late(self, begin: float, done: int) -> bool:
        """Return whether a signal has waited too long for an evaluation that began at ``begin``.

        With trained weights, at least one batch is evaluated, however busy the machine is.
        """
        if self.result.iterations == 0:  # nothing is trained yet: the figures are not needed
            return self._interrupt.requested
        return done > 0 and min(self._interrupt.waited, time.perf_counter() - begin) > PATIENCE
