"""``toynn train RECIPE``: from a text to a trained model in a run folder."""

import time
from argparse import ArgumentParser, Namespace
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from toynn.adamw import AdamW
from toynn.cli import lora, vit
from toynn.cli._numbers import whole
from toynn.cli._paths import model_file
from toynn.cli._run import (
    add_run_arguments,
    add_shape_arguments,
    apply_settings,
    cosine,
    print_model,
    print_result,
    resolve_run,
    run_folder,
    run_loop,
)
from toynn.cli._text_data import (
    DATA,
    EVAL_BATCHES,
    add_mask_argument,
    described,
    print_test_loss,
    read_data,
    write_sample,
)
from toynn.cli.models import FRESH, MODELS, SHAPE, tokenizer_of
from toynn.data.text import VOCAB, ByteBigram
from toynn.schedule import Schedule
from toynn.train.folder import RunFolder
from toynn.train.metrics import plot_losses

__all__ = ["add_parser"]


def add_parser(commands: Any) -> None:
    """Add the command to the parser's commands."""
    train = commands.add_parser("train", help="train a model", allow_abbrev=False)
    recipes = train.add_subparsers(required=True, metavar="RECIPE", dest="recipe")
    for name, model in MODELS.items():
        help_ = f"{model.help}, on text"
        parser = recipes.add_parser(name, help=help_, description=help_, allow_abbrev=False)
        _add_arguments(parser, name)
        model.add_arguments(parser)
        parser.set_defaults(run=train_model)
    lora.add_parser(recipes)
    vit.add_parser(recipes)


def _add_arguments(parser: ArgumentParser, recipe: str) -> None:
    """Add what all recipes take."""
    data = f"{DATA}; without it, the language reference that ships with Python"
    parser.add_argument("--data", metavar="PATH", help=data)
    tokens = "a GGUF file whose tokenizer is used (default: bytes, or that of --init-from)"
    parser.add_argument("--tokenizer", type=model_file, metavar="FILE", help=tokens)
    add_mask_argument(parser)
    length = "tokens per window, and the context of a new model (default 128)"
    parser.add_argument("--seq", type=whole(1), default=128, metavar="N", help=length)
    add_run_arguments(parser, recipe, "windows of text")
    add_shape_arguments(parser, FRESH)


def train_model(arguments: Namespace) -> int:
    """Train a model as the arguments say; return the exit code."""
    start = time.perf_counter()
    resolve_run(arguments)
    tokenizer = tokenizer_of(arguments)
    arguments.vocab = tokenizer.vocab_size
    MODELS[arguments.recipe].resolve(arguments)
    RunFolder.check_absent(Path(arguments.out))
    data, corpus = read_data(arguments, tokenizer, arguments.seq, arguments.vocab)
    arguments.t_seq = data.seq

    apply_settings(arguments)
    recipe, optimizer, schedule = build(arguments)
    print_model(recipe.engine)

    batches = data.batches(arguments.batch, arguments.seed)
    valid = data.valid_batches(arguments.batch, EVAL_BATCHES)
    baselines = {}
    more = ""
    if isinstance(data.train, np.ndarray) and tokenizer.vocab_size == VOCAB:
        baselines["byte bigram"] = ByteBigram(data.train).loss(valid)
        more = f"byte bigram {baselines['byte bigram']:.4f}"
        print(f"baseline    a byte bigram model: validation loss {baselines['byte bigram']:.4f}")

    described_data = described(arguments.data, data, corpus)
    config = asdict(MODELS[arguments.recipe].config(arguments))
    with run_folder(arguments, SHAPE, data=described_data, model=config) as folder:
        result = run_loop(
            arguments,
            recipe,
            batches,
            valid,
            optimizer,
            schedule,
            folder,
            on_best=lambda: folder.save_weights(recipe.engine.weights()),
        )
        recipe.engine.load_weights(folder.load_weights())
        recipe.save(folder.gguf)
        if not result.interrupted:
            write_sample(recipe.engine, tokenizer, data, folder, arguments.seed)
            plot_losses(result.reports, folder.plot, baselines)
        print_result(result, more, folder, time.perf_counter() - start)
        print_test_loss(recipe, data, arguments.batch)
    return 130 if result.interrupted else 0


def build(arguments: Namespace) -> tuple[Any, AdamW, Schedule]:
    """Return the recipe, ready to step, its optimizer and its learning rates."""
    model = MODELS[arguments.recipe]
    optimizer = model.optimizer()
    optimizer.weight_decay = arguments.weight_decay
    return model.realize(arguments), optimizer, cosine(arguments)
