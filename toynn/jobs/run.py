"""Carry out a job: from data to a trained model in a run folder, for every recipe."""

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import Any

from toynn import backends, distributed
from toynn.backends.config import automatic_precision, release
from toynn.engines.engine import Engine
from toynn.errors import ConfigError
from toynn.jobs.job import Job
from toynn.jobs.memory import check_fits, choose_plan
from toynn.numerics.dtypes import DTYPES
from toynn.optim import AdamW, Schedule
from toynn.options import absent, renamed
from toynn.system.platform import in_shell
from toynn.system.printing import counted, duration, fact
from toynn.train.begin import Begun, begun_with, length_of, warmup_of
from toynn.train.boards import BOARDS
from toynn.train.checkpoint import Checkpoint, checkpoints
from toynn.train.differences import completed
from toynn.train.folder import RunFolder, Value
from toynn.train.options import LoopOptions
from toynn.train.state import Result
from toynn.train.trainer import Trainer, find


@dataclass(frozen=True)
class Outcome:
    """The result of a run, and its folder; the job's recipe has the best weights."""

    job: Job
    result: Result
    path: Path

    @property
    def code(self) -> int:
        """The exit code: 128 + the signal that stopped the run, or 0."""
        return 128 + self.result.signal if self.result.signal else 0


def carried_out(job: Job) -> Outcome:
    """Train by the job's options; return the outcome.

    Raises ConfigError for options that contradict one another, and every error that reading the
    data, reading the model and training raise. Raises KeyboardInterrupt if the run was stopped
    before its first step.
    """
    with job.ends:
        return _carried_out(job)


def _carried_out(job: Job) -> Outcome:
    start = time.perf_counter()
    run, group = job.options, distributed.current()
    checkpoint = _resolve(job) if group.rank == 0 else None
    if checkpoint is not None:
        job.before = checkpoint.state["identity"]
    begun = begun_with(group, checkpoint)
    if run.epochs is None:
        _resolve_warmup(job, begun)
    beside = Path(run.out or ".").parent if checkpoint is None else checkpoint.path.parents[1]
    job.beside = group.tell(beside)
    if checkpoint is None and group.rank == 0 and not job.fresh:
        RunFolder.check_absent(Path(str(run.out)))
    job.fetch()
    job.resolve()
    faster = _check_machine(job)
    group.patience = 0  # no limit of time for reading; Trainer sets --rank-timeout
    with job.files:
        for turn in (True, False):  # the first process of a machine fills the cache for the others
            if (group.local_rank == 0) is turn:
                job.read()
            group.barrier("the data are read")
        batches = _resolve_length(job, begun)
        fit = check_fits if run.memory is None else choose_plan
        fit(job, max(1, len(group.local_cpus)))
        job.recipe, optimizer, schedule = build(job)
    if faster and any(DTYPES[each.dtype].elements > 1 for each in job.recipe.tensors.values()):
        job.say("", faster)
    identity = _identity(job)
    if checkpoint is not None:
        _complete(checkpoint, identity, job)
    trainer = Trainer(
        job.recipe,
        job.batches(),
        valid=[*job.valid(), *extras] if (extras := job.extras()) else job.valid(),
        optimizer=optimizer,
        schedule=schedule,
        resume=checkpoint,
        force=run.force_resume,
        save_total_limit=run.save_total_limit,
        identity=identity,
        measure=job.measure,
        joined=job.joined,
        sample=job.sample,
        check=job.check,
        unit=job.unit,
        command=job.command,
        report=run.reports,
        allreduce=run.allreduce,
        rank_timeout=run.rank_timeout,
        **vars(job.take(LoopOptions, batches=batches)),
    )
    with _run_folder(job, checkpoint, begun) if group.rank == 0 else nullcontext() as folder:
        for line in job.said:
            print(line)
        job.announce()
        if folder is not None:
            resumed = "" if checkpoint is None else f", resumed from step {checkpoint.step}"
            newest = max((step for step, _ in checkpoints(folder.path)), default=0)
            if checkpoint is not None and newest > checkpoint.step:
                resumed += f"; what was saved after it, up to step {newest}, is dropped"
            print(f"run folder  {folder.path}{resumed}", flush=True)
        trainer.folder = folder
        with trainer.running() as events:
            for event in events:
                trainer.tell(event)
        result = trainer.result
        if folder is None:  # only rank 0 has one
            return Outcome(job, result, Path(run.out or "."))
        if not result.iterations:  # stopped before the first step, or within it
            if checkpoints(folder.path):
                resumed = f"toynn train --resume {in_shell(folder.path)}"
                print(f"stopped     within the first step\n            continue with: {resumed}")
            raise KeyboardInterrupt(result.signal)
        _finish(job, result, folder, time.perf_counter() - start)
    return Outcome(job, result, folder.path)


def build(job: Job) -> tuple[Engine[Any], AdamW, Schedule]:
    """Return the recipe, ready to step, its optimizer and its learning rates."""
    job.recipe = job.realize()
    return job.recipe, job.optimizer(), job.take(Schedule, steps=job.options.steps)


def _resolve(job: Job) -> Checkpoint | None:
    """Fill in the run's folder; return the checkpoint of a resumed run."""
    if job.options.resume is not None:
        if job.options.out is not None:
            raise ConfigError("--out: a resumed run stays in its own folder: drop --out")
        return find(Path(job.options.resume))
    if job.options.out is None:
        job.options.out, job.fresh = f"runs/{job.name}-{time.strftime('%Y%m%d-%H%M%S')}", True
    return None


def _resolve_length(job: Job, begun: Begun) -> int | None:
    """Fill in the steps by --epochs and --steps; return the batches of the epochs."""
    epochs, options = job.options.epochs, job.options
    if epochs is None:
        return None
    per_update = job.take(LoopOptions).per_update(begun.ranks)
    options.steps, batches = length_of(job.per_epoch(), None, epochs, per_update, begun)
    if job.limit is not None:
        first = job.limit < options.steps
        ends = f"--steps {job.limit}" if first else f"--epochs {epochs:g}"
        said = f"--epochs {epochs:g} is {counted(options.steps, 'step')}, --steps is {job.limit}"
        job.say("length", f"{said}: the run ends after {ends}")
        if first:
            options.steps, batches = job.limit, None
    _resolve_warmup(job, begun)
    return batches


def _resolve_warmup(job: Job, begun: Begun) -> None:
    options = job.options
    if options.warmup is None:
        options.warmup = warmup_of(options.steps, begun)
    if options.warmup > options.steps:
        raise ConfigError(f"--warmup {options.warmup} is more than --steps {options.steps}")


def _check_machine(job: Job) -> str:
    """Refuse an unavailable backend or report; fill in the precision for "auto".

    Return advice about quantized bases, or "".
    """
    backends.get(job.options.backend)
    for name in BOARDS.keys() & set(job.options.reports):
        BOARDS[name].check()
    if job.options.precision == "auto":
        # config.toml gets the precision that was chosen
        chosen: Any
        chosen, why = automatic_precision(job.options.backend)
        job.options.precision = chosen
        reason, _, faster = why.partition(". ")
        job.say("precision", f"{chosen}: {reason}")
        return faster
    return ""


@contextmanager
def _run_folder(job: Job, checkpoint: Checkpoint | None, begun: Begun) -> Iterator[RunFolder]:
    """Make the run's folder, or open a resumed run's. A new folder is removed if the run fails.

    config.toml gets the options that this run uses.
    """
    recipe: dict[str, Value] = {"recipe": job.name, "version": release()}
    if begun.ranks > 1:
        recipe["ranks"] = begun.ranks
    recipe |= {"directory": job.directory.path, "steps": job.options.steps}
    tables = {"run": recipe, **job.tables(), "train": job.in_config()}
    if checkpoint is not None:
        with RunFolder.resume(checkpoint.path.parent) as folder:
            folder.config = tables
            yield folder
        return
    with (RunFolder.fresh if job.fresh else RunFolder)(str(job.options.out)) as folder:
        job.options.out, folder.config = str(folder.path), tables
        yield folder


def _identity(job: Job) -> dict[str, Any]:
    """Return what must be equal when the run is resumed."""
    harmless = {name for name, each in job.known.items() if not each.compared}
    options = {name: value for name, value in job.in_config().items() if name not in harmless}
    return {
        "recipe": job.name,
        "config": options,
        **job.tables(),
        "base": job.sources(),
    }


def _complete(checkpoint: Checkpoint, identity: Mapping[str, Any], job: Job) -> None:
    """Add options that are newer than a checkpoint to it, with the values of its time."""
    before = checkpoint.state["identity"]
    if isinstance(config := before.get("config"), dict):
        defaults = absent(job.kind)
        before["config"] = completed(renamed(config), identity["config"], defaults)


def _finish(job: Job, result: Result, folder: RunFolder, seconds: float) -> None:
    """Print the result of a run. The recipe has the best weights."""
    folder.notes |= job.notes()
    more = job.show(folder, result)  # about the best weights
    by = job.take(LoopOptions).metrics[0]
    if result.interrupted:
        print(f"stopped     after {result.iterations} steps; the best weights are saved")
        print(f"            continue with: toynn train --resume {in_shell(folder.path)}")
    if result.stopped_early:
        without = f"{counted(result.not_better, 'evaluation')} in a row without a better metric"
        print(f"stopped     after {result.iterations} steps: {without}")
    if result.empty_batches:
        print(f"skipped     {result.empty_batches} batches without a valid label")
    held_out = "" if result.val_loss == inf else f", validation {result.val_loss:.4f}"
    print(f"loss        training {result.train_loss:.4f}{held_out}")
    kept = job.kept(by, result)
    print(f"            (the {kept}, at step {result.best_iteration}){more and f'; {more}'}")
    if result.iterations and result.best_losses and not result.best_iteration:
        said = f"no evaluation has a better {by}: the weights are those from before training"
        said += f"; {folder.last} has the last ones" if folder.last.is_dir() else ""
        print(fact("warning", said))
    print(f"time        {duration(seconds)}, {result.trained_tokens:,} {job.items} trained")
    if folder.reports:
        print(f"report      {folder.report}")
    print(f"run folder  {folder.path}")
    for line in job.epilogue(folder, result):
        print(line)
