"""What every training run shares: its options, the loop with its files, what it prints."""

import time
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import toynn
from toynn.adamw import AdamW
from toynn.cli._numbers import real, whole
from toynn.errors import ConfigError
from toynn.precision import PRECISIONS
from toynn.schedule import Schedule
from toynn.train.folder import RunFolder, Value
from toynn.train.loop import Batch, Loop, LoopOptions, Recipe, Result
from toynn.train.metrics import MetricsFile
from toynn.train.progress import Progress, duration

__all__ = [
    "MIB",
    "add_run_arguments",
    "add_shape_arguments",
    "apply_settings",
    "cosine",
    "print_model",
    "print_result",
    "resolve_run",
    "run_folder",
    "run_loop",
]

WARMUP = 100  # steps, or a tenth of a shorter run
MIB = 2**20


def add_run_arguments(parser: ArgumentParser, recipe: str, items: str, **own: float) -> None:
    """Add what all recipes take; ``own`` are defaults that differ from those here.

    ``items`` is what a batch is made of.
    """
    for name, kind, default, meaning in (
        ("steps", whole(1), 1500, "updates of the weights"),
        ("batch", whole(1), 8, f"{items} per step"),
        ("lr", real(0, above=True), 3e-3, "largest learning rate"),
        ("min_lr_ratio", real(0, 1), 0.1, "the last learning rate divided by the largest"),
        ("weight_decay", real(0), 0.1, "of AdamW"),
        ("max_grad_norm", real(0), 1.0, "clip the gradient to this norm; 0 does not"),
        ("grad_accum", whole(1), 1, "batches whose gradients make one update"),
        ("seed", whole(0), 0, "of all that is random"),
        ("log_every", whole(1), 25, "steps between reports"),
        ("eval_every", whole(1), 250, "steps between evaluations"),
    ):
        value = own.get(name, default)
        help_, option = f"{meaning} (default {value:g})", f"--{name.replace('_', '-')}"
        parser.add_argument(option, type=kind, default=value, metavar="N", help=help_)
    warmup = f"steps up to the largest learning rate (default {WARMUP}, or a tenth of fewer steps)"
    parser.add_argument("--warmup", type=whole(0), metavar="N", help=warmup)
    threads = "use at most so many threads (default: one per core)"
    parser.add_argument("--threads", type=whole(1, 1024), metavar="N", help=threads)
    exact = "of matrix products (default highest)"
    parser.add_argument("--precision", choices=PRECISIONS, default="highest", help=exact)
    again = "compute activations again in the backward pass: less memory, the same results, slower"
    parser.add_argument("--checkpointing", action="store_true", help=again)
    folder = f"a new folder for the run (default runs/{recipe}-<date>-<time>)"
    parser.add_argument("--out", metavar="DIR", help=folder)


def add_shape_arguments(parser: ArgumentParser, defaults: Mapping[str, Any]) -> None:
    """Add what all transformers take; they are None where they are not given."""
    for name, kind, meaning in (
        ("d_model", whole(1), "width of the model"),
        ("layers", whole(1, 1000), "transformer blocks"),
        ("heads", whole(1), "attention heads; they must divide the width"),
    ):
        help_, option = f"{meaning} (default {defaults[name]})", f"--{name.replace('_', '-')}"
        parser.add_argument(option, type=kind, metavar="N", help=help_)


def resolve_run(arguments: Namespace) -> None:
    """Fill in what depends on other arguments; check what only fails together."""
    if arguments.warmup is None:
        arguments.warmup = min(WARMUP, arguments.steps // 10)
    if arguments.out is None:
        arguments.out = f"runs/{arguments.recipe}-{time.strftime('%Y%m%d-%H%M%S')}"
    if arguments.warmup > arguments.steps:
        raise ConfigError(f"--warmup {arguments.warmup} is more than --steps {arguments.steps}")


def apply_settings(arguments: Namespace) -> None:
    """Set what holds for the whole process."""
    if arguments.threads is not None:
        toynn.set_num_threads(arguments.threads)
    toynn.set_float32_matmul_precision(arguments.precision)


def cosine(arguments: Namespace) -> Schedule:
    """Return the learning rates that the arguments ask for."""
    return Schedule(
        "cosine", arguments.lr, arguments.steps, arguments.warmup, arguments.min_lr_ratio
    )


@contextmanager
def run_folder(
    arguments: Namespace, elsewhere: Collection[str] = (), **tables: Mapping[str, Value]
) -> Iterator[RunFolder]:
    """Make the run's folder, with config.toml in it; it goes again if nothing comes of the run.

    config.toml has the tables, and all arguments but those that are ``elsewhere``, in the tables.
    """
    elsewhere = {"recipe", "data", "out", "run", *elsewhere}
    given = {name: value for name, value in vars(arguments).items() if name not in elsewhere}
    recipe = {"recipe": arguments.recipe, "version": toynn.__version__}
    with RunFolder(arguments.out) as folder:
        folder.write_config({"run": recipe, **tables, "train": given})
        print(f"run folder  {folder.path}", flush=True)
        yield folder


def run_loop(
    arguments: Namespace,
    recipe: Recipe,
    batches: Iterator[Batch],
    valid: Iterable[Batch],
    optimizer: AdamW,
    schedule: Schedule,
    folder: RunFolder,
    *,
    unit: str = "tokens",
    on_best: Callable[[], object],
    measure: Callable[[Any], Mapping[str, float]] | None = None,
) -> Result:
    """Train; fill metrics.jsonl, show the progress. ``on_best`` keeps the best weights.

    Raises KeyboardInterrupt if a signal comes before the first step.
    """
    options = LoopOptions(
        steps=arguments.steps,
        grad_accum=arguments.grad_accum,
        max_grad_norm=arguments.max_grad_norm or None,
        log_every=arguments.log_every,
        eval_every=arguments.eval_every,
    )

    def on_step() -> None:
        folder.trained = True
        progress.step()

    with (
        MetricsFile(folder.metrics, unit) as metrics,
        Progress(arguments.steps, unit=unit) as progress,
    ):
        result = Loop(
            recipe,
            batches,
            optimizer,
            schedule,
            options,
            valid=valid,
            measure=measure,
            on_step=on_step,
            on_report=[metrics.write, progress],
            on_best=on_best,
        ).run()
    if not result.iterations:  # stopped before there is anything to keep
        raise KeyboardInterrupt
    return result


def print_model(engine: Any) -> None:
    """Print how large an engine is, and what its step takes."""
    count = sum(tensor.size for tensor in engine.tensors.values())
    trained = sum(tensor.size for tensor in engine.parameters.values())
    memory = engine.session.memory()
    parts = ("weights", "moments", "gradients", "activations", "peak")
    sizes = ", ".join(f"{part} {getattr(memory, part) / MIB:.1f}" for part in parts)
    only = f", {trained:,} of them trained" if trained < count else ""
    print(f"model       {count:,} parameters{only}")
    print(f"memory      {sizes} MiB")


def print_result(
    result: Result, more: str, folder: RunFolder, seconds: float, unit: str = "tokens"
) -> None:
    """Print what a run came to; ``more`` is said of its best weights."""
    if result.interrupted:
        print(f"stopped     after {result.iterations} steps; the best weights are saved")
    if result.empty_batches:
        print(f"skipped     {result.empty_batches} batches in which no label counted")
    print(f"loss        training {result.train_loss:.4f}, validation {result.val_loss:.4f}")
    print(f"            (the best, at step {result.best_iteration}){more and f'; {more}'}")
    print(f"time        {duration(seconds)}, {result.trained_tokens:,} {unit} trained")
    print(f"run folder  {folder.path}")
