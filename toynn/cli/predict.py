"""``toynn predict --model RUN IMAGE...``: the classes of pictures, with their probabilities."""

import sys
import tomllib
from argparse import Namespace
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load_file

import toynn
from toynn.cli._numbers import whole
from toynn.data.images import Picture, read_picture
from toynn.engines import ViTConfig, ViTEngine
from toynn.errors import CheckpointError, ConfigError, DataError
from toynn.options import RecipeOptions

__all__ = ["add_parser"]

BATCH = 16
UNPRINTABLE = "\N{REPLACEMENT CHARACTER}"  # no escape sequence reaches the terminal


def add_parser(commands: Any) -> None:
    """Add the command to the parser's commands."""
    help_ = "say what is on pictures"
    parser = commands.add_parser("predict", help=help_, description=help_, allow_abbrev=False)
    folder = "the folder of a run of `toynn train vit`"
    parser.add_argument("--model", required=True, type=Path, metavar="RUN", help=folder)
    parser.add_argument("images", nargs="+", metavar="IMAGE", help="a file with a picture")
    top = "how many classes to name (default 5)"
    parser.add_argument("--top", type=whole(1), default=5, metavar="N", help=top)
    threads = "use at most so many threads (default: one per core)"
    parser.add_argument("--threads", type=whole(1, 1024), metavar="N", help=threads)
    parser.set_defaults(run=predict)


def predict(arguments: Namespace) -> int:
    """Print the likeliest classes of each picture; return 2 if one cannot be read."""
    if arguments.threads is not None:
        toynn.set_num_threads(arguments.threads)
    engine, classes = load(arguments.model)
    code = 0
    for paths, pictures, errors in _batches(arguments.images, engine.config):
        for error in errors:
            print(f"toynn: error: {error}", file=sys.stderr)
            code = 2
        if not pictures:
            continue
        rows = engine.probabilities(np.stack(pictures))
        for path, row in zip(paths, rows, strict=True):
            print(path)
            for label in np.argsort(-row, kind="stable")[: arguments.top].tolist():
                name = "".join(c if c.isprintable() else UNPRINTABLE for c in classes[label])
                print(f"  {row[label]:7.2%}  {name}")
    return code


def load(folder: Path) -> tuple[ViTEngine, tuple[str, ...]]:
    """Return the model of a run folder, and the names of its classes."""
    path = folder / "config.toml"
    try:
        tables = tomllib.loads(path.read_text("utf-8"))
        model, classes = tables["model"], tuple(map(str, tables["data"]["classes"]))
    except OSError as error:
        raise ConfigError(
            f"{path}: cannot read: {error.strerror}; expected a run folder"
        ) from error
    except (KeyError, TypeError, ValueError) as error:
        raise ConfigError(f"{path}: not of a run of `toynn train vit`: {error}") from error
    try:
        config = ViTConfig(**model)
    except TypeError as error:
        raise ConfigError(f"{path}: [model] is not that of a vision transformer") from error
    if len(classes) != config.classes:
        raise ConfigError(f"{path}: {len(classes)} names for {config.classes} classes")
    engine = ViTEngine()
    engine.realize_for_random_init(config, RecipeOptions())
    weights = folder / "model.safetensors"
    try:
        engine.load_weights(load_file(weights))
    except (OSError, SafetensorError) as error:
        raise CheckpointError(f"{weights}: cannot read: {error}") from error
    engine.build_training_step()
    return engine, classes


def _batches(
    paths: list[str], config: ViTConfig
) -> Iterator[tuple[list[str], list[Picture], list[DataError]]]:
    """Yield paths, their pictures, and the errors of paths without."""
    for first in range(0, len(paths), BATCH):
        good: list[str] = []
        pictures: list[Picture] = []
        errors: list[DataError] = []
        for path in paths[first : first + BATCH]:
            try:
                pictures.append(read_picture(path, config.image, config.channels))
            except DataError as error:
                errors.append(error)
            else:
                good.append(path)
        yield good, pictures, errors
