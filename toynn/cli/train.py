"""``toynn train RECIPE``: from data to a trained model in a run folder, the same for every recipe.

A recipe is a Training: of text (models.py), of adapters (lora.py) or of pictures (vit.py).
"""

import shlex
import time
from argparse import Namespace
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import Any

import toynn
from toynn import backends, distributed
from toynn.adamw import AdamW
from toynn.cli._config_file import expanded, flag_values
from toynn.cli._flags import as_typed
from toynn.cli._memory import check_fits
from toynn.cli._run_flags import NO_REPORT
from toynn.cli._text import fact
from toynn.cli._training import Training
from toynn.cli.lora import LoRATraining
from toynn.cli.models import FromScratchTraining, GPT2Training, WarmStartTraining
from toynn.cli.vit import ViTTraining
from toynn.errors import ConfigError
from toynn.printing import duration
from toynn.runs.page import REPORT
from toynn.schedule import Schedule
from toynn.train import tensorboard
from toynn.train.checkpoint import Checkpoint
from toynn.train.folder import RunFolder, Value
from toynn.train.metrics import plot_losses
from toynn.train.options import MAY_DIFFER, LoopOptions, Result
from toynn.train.plan import Begun, begun_with, length_of, warmup_of
from toynn.train.protocols import Recipe
from toynn.train.trainer import Trainer, find

__all__ = ["RECIPES", "Outcome", "add_parser", "carried_out", "words_of"]

#: Flags that a resumed run may have otherwise, beside those of fields in MAY_DIFFER: they change no
#: bit. The Trainer itself compares how long the run is, and what backend and precision compute.
HARMLESS = (
    *("threads", "save_total_limit", "cache", "report", "pack_base", "checkpointing"),
    *("strict", "epochs", "backend", "precision"),
)

#: mlx-lm's and llama.cpp's names of flags.
SPELLED = {
    "--iters": "--steps",
    "--batch-size": "--batch",
    "--learning-rate": "--lr",
    "--max-seq-length": "--seq",
    "--steps-per-report": "--log-every",
    "--steps-per-eval": "--eval-every",
    "--grad-accumulation-steps": "--grad-accum",
    "-m": "--model",
}

RECIPES: dict[str, type[Training]] = {
    training.name: training
    for training in (
        GPT2Training,
        FromScratchTraining,
        WarmStartTraining,
        LoRATraining,
        ViTTraining,
    )
}


def add_parser(commands: Any) -> None:
    """Add the command to the parser's commands."""
    parser = commands.add_parser("train", help="train a model", allow_abbrev=False)
    recipes = parser.add_subparsers(required=True, metavar="RECIPE", dest="recipe")
    for name, training in RECIPES.items():
        own = recipes.add_parser(
            name, help=training.help, description=training.help, allow_abbrev=False
        )
        for flag in training.flags:
            flag.add_to(own)
        own.set_defaults(run=train, saves=True)


@dataclass(frozen=True)
class Outcome:
    """What a run came to, and where; its recipe has the best weights."""

    run: Training
    result: Result
    path: Path

    @property
    def code(self) -> int:
        """The exit code: that of the signal which stopped it, if one did."""
        return 128 + self.result.signal if self.result.signal else 0


def train(arguments: Namespace) -> int:
    """Train as the arguments say; return the exit code."""
    try:
        return carried_out(arguments).code
    except ConfigError as error:
        error.args = (as_typed(str(error), RECIPES[arguments.recipe].flags),)
        raise


def carried_out(arguments: Namespace) -> Outcome:
    """Train as the arguments say; return what came of it."""
    start = time.perf_counter()
    run, group = RECIPES[arguments.recipe](arguments), distributed.current()
    found = _resolve(arguments) if group.rank == 0 else None
    begun = begun_with(group, found)
    if arguments.epochs is None:
        _resolve_warmup(arguments, begun)
    beside = Path(arguments.out or ".").parent if found is None else found.path.parents[1]
    arguments.beside = group.tell(beside)
    run.resolve()
    if found is None and group.rank == 0 and getattr(arguments, "named", True):
        RunFolder.check_absent(Path(arguments.out))
    _apply_settings(arguments)
    with run.files:
        for turn in (True, False):  # the first process of each machine makes what others find
            if (group.place == 0) is turn:
                run.read()
            group.meet("the data are read")
        batches = _resolve_length(run, begun)
        check_fits(*run.declared(), ranks=max(1, len(group.neighbours)))
        run.recipe, optimizer, schedule = build(run)
    run.announce()
    trainer = Trainer(
        run.recipe,
        run.batches(),
        valid=[*run.valid(), *extras] if (extras := run.extras()) else run.valid(),
        optimizer=optimizer,
        schedule=schedule,
        resume=found,
        force=arguments.force_resume,
        save_total_limit=arguments.save_total_limit,
        identity=_identity(run),
        measure=run.measure,
        sample=run.sample,
        check=run.check,
        unit=run.unit,
        command=arguments.typed,
        report=tuple(name for name in arguments.report.split(",") if name != NO_REPORT),
        allreduce=arguments.allreduce,
        **run.loop_options() | {"batches": batches},
    )
    with _run_folder(run, found, begun) if group.rank == 0 else nullcontext() as folder:
        trainer.folder = folder
        result = trainer.fit()
        if folder is None:  # rank 0 has it
            return Outcome(run, result, Path(arguments.out or "."))
        if not result.iterations:  # stopped before there is anything to keep
            raise KeyboardInterrupt(result.signal)
        _finish(run, result, folder, time.perf_counter() - start)
    return Outcome(run, result, folder.path)


def build(run: Training) -> tuple[Recipe, AdamW, Schedule]:
    """Return the recipe, ready to step, its optimizer and its learning rates."""
    return run.realize(), run.optimizer(), run.schedule()


def words_of(words: Sequence[str]) -> list[str]:
    """Return the words behind ``toynn train``, with those of a file that they name.

    Of several processes with the same words rank 0 reads the file: others may not have the folder.
    """
    words, group = [_spelled(word) for word in words], distributed.current()
    alike = all(each == words for each in group.gather(words))
    if alike and group.rank:
        return group.tell(words)
    found = expanded(words, {name: training.flags for name, training in RECIPES.items()})
    return group.tell(found) if alike else found


def _spelled(word: str) -> str:
    """Return a word as it is called here: some flags are taken by the names of other programs."""
    name, sign, value = word.partition("=")
    return f"{SPELLED.get(name, name)}{sign}{value}"


def _resolve(arguments: Namespace) -> Checkpoint | None:
    """Fill in where the run goes to; return where it goes on from, if it is resumed."""
    if arguments.resume is not None:
        if arguments.out is not None:
            raise ConfigError("--out: a run that is resumed goes on in its own folder")
        return find(Path(arguments.resume))
    if arguments.out is None:
        arguments.out = f"runs/{arguments.recipe}-{time.strftime('%Y%m%d-%H%M%S')}"
        arguments.named = False
    return None


def _resolve_length(run: Training, begun: Begun) -> int | None:
    """Fill in the steps of so many epochs; return how many batches they are."""
    arguments = run.arguments
    if arguments.epochs is None:
        return None
    accum = arguments.grad_accum * begun.ranks
    arguments.steps, batches = length_of(run.per_epoch(), None, arguments.epochs, accum, begun)
    _resolve_warmup(arguments, begun)
    return batches


def _resolve_warmup(arguments: Namespace, begun: Begun) -> None:
    if arguments.warmup is None:
        arguments.warmup = warmup_of(arguments.steps, begun)
    if arguments.warmup > arguments.steps:
        raise ConfigError(f"--warmup {arguments.warmup} is more than --steps {arguments.steps}")


def _apply_settings(arguments: Namespace) -> None:
    """Set what holds for the whole process; refuse a backend that it has not."""
    backends.get(arguments.backend)
    if "tensorboard" in arguments.report:
        tensorboard.check_installed()
    if arguments.threads is not None:
        toynn.set_num_threads(arguments.threads)
    if arguments.precision == "auto":
        # config.toml says which
        arguments.precision, why = toynn.automatic_precision(arguments.backend)
        print(fact("precision", f"{arguments.precision}: {why}"))
    toynn.set_float32_matmul_precision(arguments.precision)


@contextmanager
def _run_folder(run: Training, found: Checkpoint | None, begun: Begun) -> Iterator[RunFolder]:
    """Make the run's folder, which goes again if nothing comes of the run; or open a resumed run's.

    Its config.toml has the flags that the run goes on with.
    """
    recipe: dict[str, Value] = {"recipe": run.name, "version": toynn.__version__}
    if begun.ranks > 1:
        recipe["ranks"] = begun.ranks
    tables = {"run": recipe, **run.tables(), "train": _flags(run)}
    if found is not None:
        with RunFolder.resume(found.path.parent) as folder:
            folder.config = tables
            print(f"run folder  {folder.path}, resumed from step {found.step}", flush=True)
            yield folder
        return
    make = RunFolder if getattr(run.arguments, "named", True) else RunFolder.fresh
    with make(run.arguments.out) as folder:
        run.arguments.out, folder.config = str(folder.path), tables
        print(f"run folder  {folder.path}", flush=True)
        yield folder


def _flags(run: Training) -> dict[str, Value]:
    return flag_values(run.flags, run.arguments, run.source[0])


def _identity(run: Training) -> dict[str, Any]:
    """Return what must be alike when the run is resumed."""
    harmless = {flag.name for flag in run.flags if flag.to.get(LoopOptions) in MAY_DIFFER}
    given = {k: v for k, v in _flags(run).items() if k not in harmless and k not in HARMLESS}
    return {
        "recipe": run.name,
        "config": given,
        **run.tables(),
        "base": run.sources(),
    }


def _finish(run: Training, result: Result, folder: RunFolder, seconds: float) -> None:
    """Draw and print what a run came to; its best weights are the recipe's by now."""
    folder.notes |= run.notes()
    unit = run.items.removesuffix("s")
    if not plot_losses(result.reports, folder.plot, run.baselines, unit, run.mixes):
        print(f"no picture  {folder.plot.name} needs matplotlib: pip install matplotlib")
    more = run.show(folder, result)
    by = run.arguments.measure.partition(",")[0]
    _print_result(result, more, folder, seconds, run.items, "" if by == "loss" else f" by {by}")
    for line in run.epilogue(folder):
        print(line)


def _print_result(
    result: Result, more: str, folder: RunFolder, seconds: float, items: str, by: str
) -> None:
    """Print what a run came to; ``more`` is said of its best weights, which were chosen ``by``."""
    if result.interrupted:
        print(f"stopped     after {result.iterations} steps; the best weights are saved")
        print(f"            go on with: toynn train --resume {shlex.quote(str(folder.path))}")
    if result.stopped_early:
        print(f"stopped     after {result.iterations} steps: {result.not_better} times no better")
    if result.empty_batches:
        print(f"skipped     {result.empty_batches} batches in which no label counted")
    held_out = "" if result.val_loss == inf else f", validation {result.val_loss:.4f}"
    print(f"loss        training {result.train_loss:.4f}{held_out}")
    which = f"best{by}" if held_out else "newest"
    print(f"            (the {which}, at step {result.best_iteration}){more and f'; {more}'}")
    print(f"time        {duration(seconds)}, {result.trained_tokens:,} {items} trained")
    if folder.reports:
        print(f"report      {folder.path / REPORT}")
    print(f"run folder  {folder.path}")
