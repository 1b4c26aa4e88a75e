"""The Trainer: what is done with the events of a training loop.

    trainer = Trainer(recipe, data, steps=1000, lr=3e-4, folder="runs/mine", save_every=100)
    result = trainer.fit()                      or: for report in trainer: ...

The loop yields events, and the Trainer gives each to its sinks: files of the run folder, boards,
the bar, the user's functions. With a folder, reports go to metrics.jsonl, and the best model so far
to its files. Every ``save_every`` steps it saves a checkpoint to ``resume`` from. ``toynn train``
uses it too.
"""

import shutil
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager, nullcontext
from dataclasses import asdict
from functools import partial
from os import PathLike
from pathlib import Path
from typing import Any

from toynn import distributed
from toynn.backends.config import release
from toynn.backends.threads import share_cores
from toynn.data.batch import Batch
from toynn.data.jsonl import Dataset
from toynn.data.mixture import Mixture
from toynn.data.preference import PreferenceData
from toynn.errors import CheckpointError
from toynn.formats.logs import Log
from toynn.optim import AdamW, Schedule
from toynn.system.critical import Section, uninterrupted
from toynn.system.platform import in_shell
from toynn.system.printing import print_line
from toynn.train import checkpoint
from toynn.train.begin import (
    Data,
    Length,
    begun_with,
    computed_with,
    described,
    extension,
    length_of,
    rates,
    source_of,
)
from toynn.train.boards import BOARDS, Board
from toynn.train.checkpoint import Checkpoint
from toynn.train.differences import check_alike
from toynn.train.feed import Feed
from toynn.train.folder import RunFolder
from toynn.train.loop import (
    Best,
    Evaluating,
    Event,
    Learner,
    Reported,
    Sampled,
    Save,
    Stepped,
    train,
)
from toynn.train.metrics import MetricsFile, Report, figures_of, read_reports
from toynn.train.options import LoopOptions
from toynn.train.progress import Progress
from toynn.train.ranks import Alone, Ranks
from toynn.train.rendezvous import (
    agree,
    check_enough,
    expected,
    measured,
    share_state,
    share_weights,
    took,
)
from toynn.train.state import Figures, Part, Result

StrPath = str | PathLike[str]
#: A kind of event, and what is done with each event of that kind.
Sink = tuple[type[Event], Callable[[Any], object]]

#: A run diverges above WORSE times the loss before training plus NOISE.
WORSE, NOISE = 1.5, 0.5


class Trainer:
    """Trains a realized recipe.

    Parameters
    ----------
    data
        A ``Dataset``, ``PreferenceData``, or a ``Mixture`` of them. Or an iterator of batches,
        which needs a ``state`` for resuming. Or a list of batches, which is repeated.
    steps, epochs
        The length of the run: updates, or passes through the data.
    valid
        Batches to evaluate on; a Dataset has its own.
    optimizer, lr, schedule
        The optimizer (default: AdamW in the recipe's convention), the peak learning rate, and
        "cosine", "linear", "constant", "wsd", or a function of the step.
    folder
        A new folder for the run, or an open ``RunFolder``; None leaves no files.
    resume
        A run folder or a checkpoint to resume from, or what ``find`` returned for one. ``force``
        resumes although the run differs. To extend a run, give more steps or epochs than it had.
        The schedule is then recomputed for all steps: the warm-up stays, and a learning rate that
        had fallen rises again. Intervals of reports, evaluations and checkpoints may differ, and so
        may early stopping.
    identity
        What a resumed run must share with the saved one, by name: configuration, hashes of files.
    measure, joined
        Return the figures of a validation batch, and of all of them: see ``Learner``. The default
        is the loss.
    on_step, on_report
        Called after each step with the result so far, and with each report.
    check
        Called before each evaluation and save; raises if a mapped file has changed, by default one
        of the recipe or of the data.
    sample
        Yields a sample of the model's text, in pieces, every ``sample_every`` steps, for
        samples.jsonl.
    command
        The command that started the run, for its report.
    report
        "html": write the page report.html when the run ends; "tensorboard": write event files in
        tensorboard/; "wandb": log to Weights & Biases, offline unless WANDB_MODE is set.
    allreduce
        How gradients of ``mpiexec``'s processes are added: "ordered", with the same bits in every
        run, or "fast". Rank 0 writes and prints. All ranks share the micro-batches of an update
        (ranks.py).
    rank_timeout
        Seconds to wait for a rank that is stopped or hangs, before all processes end; 0: wait
        forever. The last checkpoint is complete.
    options
        Those of ``LoopOptions``.

    Raises CheckpointError if a resumed run differs from the saved one, or has fewer steps than were
    taken; its folder then stays as it is.
    """

    def __init__(
        self,
        recipe: Any,
        data: Data,
        *,
        steps: int | None = None,
        epochs: float | None = None,
        valid: Iterable[Batch] | None = None,
        optimizer: AdamW | None = None,
        lr: float = 1e-3,
        schedule: str | Callable[[int], float] = "cosine",
        warmup: int | None = None,
        min_lr_ratio: float = 0.1,
        seed: int = 0,
        folder: StrPath | RunFolder | None = None,
        resume: StrPath | Checkpoint | None = None,
        force: bool = False,
        save_total_limit: int = 2,
        identity: Mapping[str, Any] | None = None,
        measure: Callable[[Any], Figures] | None = None,
        joined: Callable[[Sequence[Any]], Mapping[str, float]] = lambda _: {},
        on_step: Callable[[Result], object] = lambda result: None,
        on_report: Sequence[Callable[[Report], object]] = (),
        sample: Callable[[], Iterable[str]] = tuple,
        check: Callable[[], object] | None = None,
        unit: str = "tokens",
        progress: bool = True,
        command: str | None = None,
        report: Collection[str] = ("html",),
        allreduce: str = "ordered",
        rank_timeout: float = distributed.PATIENCE,
        **options: Any,
    ) -> None:
        group = self.group = distributed.init()
        group.patience = rank_timeout
        if group.rank:  # rank 0 writes, prints and samples
            folder = resume = None
            progress, on_report, sample = False, (), tuple
        resumed = find(Path(resume)) if isinstance(resume, str | PathLike) else resume
        begun = self._begun = begun_with(group, resumed)
        source, valid = source_of(recipe, data, valid, seed)
        check_enough(group, source)
        per_update = LoopOptions(**{"steps": 1, **options}).per_update(begun.ranks)
        per_epoch = getattr(source, "per_epoch", None)
        self._per_epoch = per_epoch and per_epoch / per_update  # in steps
        steps, batches = length_of(per_epoch, steps, epochs, per_update, begun)
        self.options = LoopOptions(**{"steps": steps, "batches": batches, **options})
        optimizer = recipe.optimizer() if optimizer is None else optimizer
        schedule = rates(schedule, lr, steps, warmup, min_lr_ratio, begun)
        settings = {"training": described(self.options, optimizer, schedule)}
        self.identity = {**computed_with(recipe), **(settings if identity is None else identity)}
        stored = schedule if isinstance(schedule, Schedule) else None
        self._length = Length(self.options.steps, self.options.batches, per_update, stored)
        if resumed is not None:
            check_alike(resumed, self.identity, begun, self.options, force)
        for name in BOARDS.keys() & set(report):
            BOARDS[name].check()
        self.ranks = Alone() if group.size == 1 else Ranks(group, recipe, allreduce)
        measure = measure or (lambda batch: {"loss": recipe.evaluate(batch)})
        self.recipe, self.result = recipe, begun.result
        self.model = Learner(recipe, optimizer, schedule, measure, joined, sample, self.ranks)
        check = check or _checks(recipe, data)
        self.feed = Feed(source, self.options.batches, per_update, valid, check)
        self.folder = folder if isinstance(folder, RunFolder) else None
        self._new = None if folder is None or self.folder else Path(str(folder))
        self._resume, self._limit = resumed, save_total_limit
        self._unit, self._progress = unit, progress
        self._command, self._told = command, report
        self._on_step, self._on_report = on_step, on_report
        self._sinks: list[Sink] = []
        self._bar: Progress | None = None
        self._diverges = False  # printed once

    def __repr__(self) -> str:
        return f"Trainer({self.recipe!r}, {self.result.iterations} of {self.options.steps} steps)"

    def fit(self) -> Result:
        """Train to the end or until a signal; with a folder, the recipe then has the best weights.

        Raises what a step raises, and CheckpointError if files cannot be written.
        """
        for _ in self:
            pass
        return self.result

    def __iter__(self) -> Iterator[Report]:
        """Train as ``fit`` does, and yield each report. Only once."""
        with self.running() as events:
            for event in events:
                self.tell(event)
                if isinstance(event, Reported):
                    yield event.report

    @contextmanager
    def running(self) -> Iterator[Iterator[Event]]:
        """Open the run, and yield the events of its loop; give each of them to ``tell``.

        An error in the body ends the run as an error of the loop does.
        """
        with _Exits() as stack:
            resumed = self._resume
            with Section():  # a signal must not leave the folder locked
                if resumed is not None and self.folder is None:
                    self.folder = stack.enter_context(RunFolder.resume(resumed.path.parent))
                elif self._new is not None:
                    self.folder = stack.enter_context(RunFolder(self._new))
            if self._begun.feed is not None:
                self._restore(resumed, self._begun.feed)
            if isinstance(self.ranks, Ranks):
                self._join(self.ranks)
            if self.folder is not None:  # a refused run has written nothing
                self._begin(self.folder)
            self._sinks = [*self._opened(stack)]
            try:
                with closing(train(self.model, self.feed, self.options, self.result)) as events:
                    yield events
            finally:
                if self.folder is not None:
                    self.folder.notes.ended(self.recipe, self.result)
            if self.folder is not None and self.result.iterations:
                self._write_last(self.folder)
                self.recipe.read_run(self.folder.path)
            if isinstance(self.ranks, Ranks):
                self._part(self.ranks)

    def tell(self, event: Event) -> None:
        """Give an event to each sink of its kind."""
        for kind, act in self._sinks:
            if isinstance(event, kind):
                act(event)

    # -- Several processes ---------------------------------------------------------------------

    def _join(self, ranks: Ranks) -> None:
        """Check that all ranks agree, start from rank 0's state, and print the expected cost."""
        group, per_update = self.group, self.feed.per_update
        share_cores(group.local_cpus, group.local_rank)
        if group.rank:  # rank 0 has the gradients of an update that has begun
            self.result.part = Part(self.result.part.batches)
        first = self.feed.first()
        alike = {"options": asdict(self.options), "plan": asdict(self._length), **self.identity}
        agree(group, self.recipe, alike, first)
        share_state(group, self.recipe)
        if first is not None:
            ranks.cost = measured(ranks, first, per_update)
            self._print(expected(ranks, per_update))

    def _part(self, ranks: Ranks) -> None:
        """Copy rank 0's weights, which may be the best ones, to all ranks."""
        if self.group.tell(self.folder is not None and self.result.iterations > 0):
            share_weights(self.group, self.recipe)
        self._print(took(ranks))

    def _print(self, lines: Iterable[str]) -> None:
        """Print lines on stderr, if it can be written."""
        if self._progress:
            for line in lines:
                print_line(line)

    # -- Beginning -----------------------------------------------------------------------------

    def _restore(self, resumed: Checkpoint | None, position: dict[str, Any]) -> None:
        """Restore rank 0's recipe and reports, and the data of all ranks; no file is changed.

        Raises CheckpointError for a bad position.
        """
        if resumed is not None:
            self.recipe.restore(resumed.snapshot)
            keep = resumed.state["metrics_bytes"]
            if self.folder is not None and self.folder.metrics.exists():
                self.result.reports = read_reports(self.folder.metrics, self._unit, keep)
        try:
            self.feed.state = position
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
            why = f"the saved state is bad: {type(error).__name__}: {error}"
            raise CheckpointError(f"cannot resume: {why}") from error

    def _begin(self, folder: RunFolder) -> None:
        """Begin to write in a folder; restore it to the checkpoint of a resumed run."""
        if self._resume is not None:
            checkpoint.restore_best(self._resume, folder.path)
            checkpoint.sweep(folder.path)
            shutil.rmtree(folder.last, ignore_errors=True)
        self._print(extension(self._begun, self._length))
        folder.begin()
        folder.reports = "html" in self._told
        done, sources = self.result.iterations, self.identity.get("base")
        folder.notes.began(self._command, done, self.options, sources, self.recipe)
        folder.notes.write()

    # -- Sinks: what is done with an event -----------------------------------------------------

    def _opened(self, stack: ExitStack) -> Iterator[Sink]:
        """Open logs, boards and bar; yield a kind of event and its sink, in the order of calls.

        A sink cannot change the run's state. The logs lose everything after the checkpoint.
        """
        ranks, folder = self.ranks, self.folder
        if isinstance(ranks, Ranks):
            yield Stepped, lambda event: ranks.spent.add(event.seconds)
            place = self.group.tell(None if folder is None else str(folder.path))
            if place is not None:
                hint = f"resume with: toynn train --resume {in_shell(place)}"
                yield Save, lambda _: self.group.hint(hint)
        if folder is not None:
            kept = {} if self._resume is None else self._resume.state
            last = self.result.reports[-1].iteration + 1 if self.result.reports else 0
            boards = [
                stack.enter_context(board(folder.path, last, self.identity))
                for name, board in BOARDS.items()
                if name in self._told
            ]
            metrics = MetricsFile(folder.metrics, self._unit, kept.get("metrics_bytes"))
            stack.enter_context(metrics)
            samples: Log | None = None
            if self.options.sample_every or folder.samples.exists():
                samples = log = Log(folder.samples, kept.get("samples_bytes"))
                stack.enter_context(log)
                yield Sampled, lambda event: log.append(vars(event))
            yield Best, lambda _: self.recipe.write_run(folder.path)
            yield Reported, lambda event: metrics.write(event.report)
            for board in boards:
                yield Reported, partial(self._show_on, board)
            yield Save, partial(self._save, folder, metrics, samples)
        if self._progress:
            bar = self._bar = Progress(
                self.options.steps,
                unit=self._unit,
                done=self.result.iterations,
                per_epoch=self._per_epoch,
                eval_every=self.options.eval_every,
            )
            stack.enter_context(bar)
            yield Stepped, lambda _: bar.step()
            yield Evaluating, lambda event: bar.evaluating(event.done, event.of)
            yield Reported, lambda event: bar(event.report)
            yield Sampled, lambda event: bar.sample(event.iteration, event.text)
        yield Stepped, self._step
        yield Reported, self._call_users
        yield Reported, self._warn

    def _step(self, event: Stepped) -> None:
        if self.folder is not None:
            self.folder.trained = True
        self._on_step(self.result)

    def _show_on(self, board: Board, event: Reported) -> None:
        board.write(event.report.iteration, figures_of(event.report, self._unit))

    def _call_users(self, event: Reported) -> None:
        with self._above():
            for tell in self._on_report:
                tell(event.report)

    def _warn(self, event: Reported) -> None:
        """Say once that the run diverges."""
        report, before = event.report, self.result.reports[0].val_loss
        now = report.train_loss
        if self._diverges or before is None or now is None or now <= WORSE * before + NOISE:
            return
        self._diverges = True
        self._say(
            f"step {report.iteration}: the loss, {now:.4f}, is far above the {before:.4f} "
            "before training: the run diverges; try a lower learning rate"
        )

    def _save(
        self, folder: RunFolder, metrics: MetricsFile, samples: Log | None, event: Save
    ) -> None:
        """Save a checkpoint. A failure is printed, and the next checkpoint is tried.

        After a signal or the last step there is no next one, so a failure raises.
        """
        try:
            metrics.sync()
            if samples is not None:
                samples.sync()
            checkpoint.save(
                folder.path,
                self.result.iterations,
                self.recipe.snapshot(),
                {
                    **event.state,
                    "ranks": self._begun.ranks,
                    "toynn": release(),
                    "identity": self.identity,
                    "plan": asdict(self._length),
                    "metrics_bytes": metrics.length,
                    "samples_bytes": 0 if samples is None else samples.length,
                },
                folder.best_files(),
            )
            folder.trained = True
            checkpoint.prune(folder.path, self.result.iterations, self._limit)
        except CheckpointError as error:
            if self.ranks.interrupt.requested:
                raise
            if event.last:
                best = f"training has ended, and the best weights are in {folder.path}"
                raise CheckpointError(f"{error}; {best}") from error
            self._say(f"{error}; training continues, and the next checkpoint will be tried")

    def _write_last(self, folder: RunFolder) -> None:
        """Write the last weights if the best ones are others; only print a failure."""
        if self.result.best_iteration == self.result.iterations:
            return
        try:
            folder.last.mkdir(exist_ok=True)
            self.recipe.write_run(folder.last)
        except (CheckpointError, OSError) as error:
            shutil.rmtree(folder.last, ignore_errors=True)
            self._say(f"the last weights are not written: {error}")

    def _say(self, message: str) -> None:
        with self._above():
            say(message)

    def _above(self) -> AbstractContextManager[None]:
        """Hide the progress bar while something else prints."""
        return nullcontext() if self._bar is None else self._bar.above()


class _Exits(ExitStack):
    """An exit stack whose exits are not interrupted by signals."""

    __exit__ = uninterrupted(ExitStack.__exit__)


def find(path: Path) -> Checkpoint:
    """Return the checkpoint at a path, or the newest complete one in a run's folder.

    Broken checkpoints are skipped with a message on stderr. Raises CheckpointError.
    """
    if not path.is_dir():
        raise CheckpointError(f"{path}: expected the folder of a run, or of a checkpoint in one")
    if checkpoint.is_named(path):
        return checkpoint.read(path)
    newest = checkpoint.newest(path, say)
    if newest is None:
        raise CheckpointError(
            f"{path}: no complete checkpoint in it: the run ended before its first; start again "
            "with its configuration (--config DIR/config.toml)"
        )
    return newest


def _checks(recipe: Any, data: Any) -> Callable[[], None]:
    """Return a function that raises if a mapped file has changed."""

    def check() -> None:
        recipe.check_unchanged()
        if isinstance(data, Dataset | Mixture | PreferenceData):
            data.check_unchanged()

    return check


def say(message: str) -> None:
    """Print a line on stderr; drop it if nobody reads stderr."""
    print_line(f"toynn: {message}")
