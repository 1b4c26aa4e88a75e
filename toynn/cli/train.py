"""``toynn train RECIPE``: from a text to a trained model in a run folder."""

import time
from argparse import ArgumentParser, Namespace
from dataclasses import asdict
from pathlib import Path
from typing import Any

import toynn
from toynn.adamw import AdamW
from toynn.cli._numbers import real, whole
from toynn.cli._text import harmless
from toynn.cli.models import FRESH, MODELS, SHAPE
from toynn.data.text import ByteBigram, Corpus, RandomWindows, spaced_windows
from toynn.engines import DecodingEngine
from toynn.errors import ConfigError
from toynn.generate import sample
from toynn.precision import PRECISIONS
from toynn.schedule import Schedule
from toynn.train.folder import RunFolder, Value
from toynn.train.loop import Loop, LoopOptions, Result
from toynn.train.metrics import MetricsFile, plot_losses
from toynn.train.progress import Progress, duration

__all__ = ["add_parser"]

WARMUP = 100  # steps, or a tenth of a shorter run
EVAL_BATCHES = 16
SAMPLE_PROMPT = 32  # tokens of the validation part, which the sample continues
SAMPLE_TOKENS = 256
MIB = 2**20


def add_parser(commands: Any) -> None:
    """Add the command to the parser's commands."""
    train = commands.add_parser("train", help="train a model", allow_abbrev=False)
    recipes = train.add_subparsers(required=True, metavar="RECIPE", dest="recipe")
    for name, model in MODELS.items():
        help_ = f"{model.help}, on bytes of text"
        parser = recipes.add_parser(name, help=help_, description=help_, allow_abbrev=False)
        _add_arguments(parser, name)
        model.add_arguments(parser)
        parser.set_defaults(run=train_model)


def _add_arguments(parser: ArgumentParser, recipe: str) -> None:
    """Add what all recipes take."""
    text = "a text in UTF-8; without it, the language reference that ships with Python"
    parser.add_argument("--data", metavar="FILE", help=text)
    for name, kind, default, meaning in (
        ("--steps", whole(1), 1500, "updates of the weights"),
        ("--batch", whole(1), 8, "windows of text per step"),
        ("--seq", whole(1), 128, "tokens per window, and the model's context"),
        ("--lr", real(0, above=True), 3e-3, "largest learning rate"),
        ("--min-lr-ratio", real(0, 1), 0.1, "the last learning rate divided by the largest"),
        ("--weight-decay", real(0), 0.1, "of AdamW"),
        ("--max-grad-norm", real(0), 1.0, "clip the gradient to this norm; 0 does not"),
        ("--grad-accum", whole(1), 1, "batches whose gradients make one update"),
        ("--seed", whole(0), 0, "of the weights, the batches and the sample"),
        ("--log-every", whole(1), 25, "steps between reports"),
        ("--eval-every", whole(1), 250, "steps between evaluations"),
    ):
        help_ = f"{meaning} (default {default})"
        parser.add_argument(name, type=kind, default=default, metavar="N", help=help_)
    for name, kind, meaning in (
        ("d_model", whole(1), "width of the model"),
        ("layers", whole(1, 1000), "transformer blocks"),
        ("heads", whole(1), "attention heads; they must divide the width"),
    ):
        help_, option = f"{meaning} (default {FRESH[name]})", f"--{name.replace('_', '-')}"
        parser.add_argument(option, type=kind, metavar="N", help=help_)
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


def train_model(arguments: Namespace) -> int:
    """Train a model as the arguments say; return the exit code."""
    start = time.perf_counter()
    _resolve(arguments)
    RunFolder.check_absent(Path(arguments.out))
    corpus = Corpus.embedded() if arguments.data is None else Corpus.read(arguments.data)
    train_tokens, valid_tokens = corpus.split(arguments.seq)
    print(f"corpus      {corpus.name}: {len(corpus.text):,} bytes, sha256 {corpus.sha256[:12]}")

    if arguments.threads is not None:
        toynn.set_num_threads(arguments.threads)
    toynn.set_float32_matmul_precision(arguments.precision)
    recipe, optimizer, schedule = build(arguments)
    _print_model(recipe.engine)

    batches = RandomWindows(train_tokens, arguments.batch, arguments.seq, arguments.seed)
    valid = spaced_windows(valid_tokens, arguments.batch, arguments.seq, EVAL_BATCHES)
    bigram = ByteBigram(train_tokens).loss(valid)
    print(f"baseline    a byte bigram model: validation loss {bigram:.4f}")

    folder = RunFolder(arguments.out)
    folder.write_config(_tables(arguments, corpus))
    print(f"run folder  {folder.path}", flush=True)
    options = LoopOptions(
        steps=arguments.steps,
        grad_accum=arguments.grad_accum,
        max_grad_norm=arguments.max_grad_norm or None,
        log_every=arguments.log_every,
        eval_every=arguments.eval_every,
    )
    with MetricsFile(folder.metrics) as metrics, Progress(arguments.steps) as progress:
        result = Loop(
            recipe,
            batches,
            optimizer,
            schedule,
            options,
            valid=valid,
            on_step=progress.step,
            on_report=[metrics.write, progress],
            on_best=folder.save_weights,
        ).run()

    recipe.engine.load_weights(folder.load_weights())
    recipe.save(folder.gguf)
    if not result.interrupted:
        prompt = valid_tokens[:SAMPLE_PROMPT].tobytes()
        _write_sample(recipe.engine, prompt, folder, arguments.seed)
        plot_losses(result.reports, folder.plot, {"byte bigram": bigram})
    _print_result(result, bigram, folder, time.perf_counter() - start)
    return 130 if result.interrupted else 0


def build(arguments: Namespace) -> tuple[Any, AdamW, Schedule]:
    """Return the recipe, ready to step, its optimizer and its learning rates."""
    model = MODELS[arguments.recipe]
    optimizer = model.optimizer()
    optimizer.weight_decay = arguments.weight_decay
    schedule = Schedule(
        "cosine", arguments.lr, arguments.steps, arguments.warmup, arguments.min_lr_ratio
    )
    return model.realize(arguments), optimizer, schedule


def _resolve(arguments: Namespace) -> None:
    """Fill in what depends on other arguments; check what only fails together."""
    if arguments.warmup is None:
        arguments.warmup = min(WARMUP, arguments.steps // 10)
    if arguments.out is None:
        arguments.out = f"runs/{arguments.recipe}-{time.strftime('%Y%m%d-%H%M%S')}"
    if arguments.warmup > arguments.steps:
        raise ConfigError(f"--warmup {arguments.warmup} is more than --steps {arguments.steps}")
    MODELS[arguments.recipe].resolve(arguments)


def _tables(arguments: Namespace, corpus: Corpus) -> dict[str, dict[str, Value]]:
    """Return the resolved configuration, as config.toml has it."""
    elsewhere = {"recipe", "data", "out", "run", *SHAPE}
    return {
        "run": {"recipe": arguments.recipe, "version": toynn.__version__},
        "data": {"name": corpus.name, "bytes": len(corpus.text), "sha256": corpus.sha256},
        "model": asdict(MODELS[arguments.recipe].config(arguments)),
        "train": {name: value for name, value in vars(arguments).items() if name not in elsewhere},
    }


def _print_model(engine: DecodingEngine[Any]) -> None:
    count = sum(array.size for array in engine.weights().values())
    memory = engine.session.memory()
    parts = ("weights", "moments", "gradients", "activations", "peak")
    sizes = ", ".join(f"{part} {getattr(memory, part) / MIB:.1f}" for part in parts)
    print(f"model       {count:,} parameters")
    print(f"memory      {sizes} MiB")


def _write_sample(engine: DecodingEngine[Any], prompt: bytes, folder: RunFolder, seed: int) -> None:
    """Let the model continue a text; print and keep what it writes."""
    new = sample(engine, list(prompt), SAMPLE_TOKENS, seed=seed)
    text = (prompt + bytes(new)).decode(errors="replace")
    folder.write_sample(text)
    print(f"--- sample: {len(prompt)} bytes of the validation text, then the model's own ---")
    print(harmless(text))
    print("---")


def _print_result(result: Result, bigram: float, folder: RunFolder, seconds: float) -> None:
    if result.interrupted:
        print(f"stopped     after {result.iterations} steps; the best weights are saved")
    if result.empty_batches:
        print(f"skipped     {result.empty_batches} batches in which no label counted")
    print(f"loss        training {result.train_loss:.4f}, validation {result.val_loss:.4f}")
    print(f"            (the best, at step {result.best_iteration}); byte bigram {bigram:.4f}")
    print(f"time        {duration(seconds)}, {result.trained_tokens:,} tokens trained")
    print(f"run folder  {folder.path}")
