"""``toynn train RECIPE``: from a text to a trained model in a run folder."""

import time
from argparse import ArgumentParser, Namespace
from dataclasses import asdict
from pathlib import Path
from typing import Any

import toynn
from toynn.adamw import AdamW
from toynn.cli import vit
from toynn.cli._numbers import whole
from toynn.cli._run import (
    add_run_arguments,
    add_shape_arguments,
    apply_settings,
    cosine,
    print_model,
    print_result,
    resolve_run,
    run_loop,
)
from toynn.cli._text import harmless
from toynn.cli.models import FRESH, MODELS, SHAPE
from toynn.data.text import ByteBigram, Corpus, RandomWindows, spaced_windows
from toynn.engines import DecodingEngine
from toynn.generate import sample
from toynn.schedule import Schedule
from toynn.train.folder import RunFolder, Value
from toynn.train.metrics import plot_losses

__all__ = ["add_parser"]

EVAL_BATCHES = 16
SAMPLE_PROMPT = 32  # tokens of the validation part, which the sample continues
SAMPLE_TOKENS = 256


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
    vit.add_parser(recipes)


def _add_arguments(parser: ArgumentParser, recipe: str) -> None:
    """Add what all recipes take."""
    text = "a text in UTF-8; without it, the language reference that ships with Python"
    parser.add_argument("--data", metavar="FILE", help=text)
    length = "tokens per window, and the model's context (default 128)"
    parser.add_argument("--seq", type=whole(1), default=128, metavar="N", help=length)
    add_run_arguments(parser, recipe, "windows of text")
    add_shape_arguments(parser, FRESH)


def train_model(arguments: Namespace) -> int:
    """Train a model as the arguments say; return the exit code."""
    start = time.perf_counter()
    _resolve(arguments)
    RunFolder.check_absent(Path(arguments.out))
    corpus = Corpus.embedded() if arguments.data is None else Corpus.read(arguments.data)
    train_tokens, valid_tokens = corpus.split(arguments.seq)
    print(f"corpus      {corpus.name}: {len(corpus.text):,} bytes, sha256 {corpus.sha256[:12]}")

    apply_settings(arguments)
    recipe, optimizer, schedule = build(arguments)
    print_model(recipe.engine)

    batches = RandomWindows(train_tokens, arguments.batch, arguments.seq, arguments.seed)
    valid = spaced_windows(valid_tokens, arguments.batch, arguments.seq, EVAL_BATCHES)
    bigram = ByteBigram(train_tokens).loss(valid)
    print(f"baseline    a byte bigram model: validation loss {bigram:.4f}")

    folder = RunFolder(arguments.out)
    folder.write_config(_tables(arguments, corpus))
    print(f"run folder  {folder.path}", flush=True)
    result = run_loop(arguments, recipe, batches, valid, optimizer, schedule, folder)

    recipe.engine.load_weights(folder.load_weights())
    recipe.save(folder.gguf)
    if not result.interrupted:
        prompt = valid_tokens[:SAMPLE_PROMPT].tobytes()
        _write_sample(recipe.engine, prompt, folder, arguments.seed)
        plot_losses(result.reports, folder.plot, {"byte bigram": bigram})
    more = f"byte bigram {bigram:.4f}"
    print_result(result, more, folder, time.perf_counter() - start)
    return 130 if result.interrupted else 0


def build(arguments: Namespace) -> tuple[Any, AdamW, Schedule]:
    """Return the recipe, ready to step, its optimizer and its learning rates."""
    model = MODELS[arguments.recipe]
    optimizer = model.optimizer()
    optimizer.weight_decay = arguments.weight_decay
    return model.realize(arguments), optimizer, cosine(arguments)


def _resolve(arguments: Namespace) -> None:
    """Fill in what depends on other arguments; check what only fails together."""
    resolve_run(arguments)
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


def _write_sample(engine: DecodingEngine[Any], prompt: bytes, folder: RunFolder, seed: int) -> None:
    """Let the model continue a text; print and keep what it writes."""
    new = sample(engine, list(prompt), SAMPLE_TOKENS, seed=seed)
    text = (prompt + bytes(new)).decode(errors="replace")
    folder.write_sample(text)
    print(f"--- sample: {len(prompt)} bytes of the validation text, then the model's own ---")
    print(harmless(text))
    print("---")
