"""``toynn predict --model RUN IMAGE...``: the classes of pictures, with their probabilities."""

from argparse import Namespace
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

import toynn
from toynn.cli._numbers import whole
from toynn.cli._run_flags import BACKEND, THREADS
from toynn.cli._text import harmless, print_error
from toynn.data.images import Picture, read_picture
from toynn.engines import ViTConfig, ViTEngine
from toynn.errors import ConfigError, DataError

__all__ = ["add_parser"]

BATCH = 16


def add_parser(commands: Any) -> None:
    """Add the command to the parser's commands."""
    help_ = "say what is on pictures"
    parser = commands.add_parser("predict", help=help_, description=help_, allow_abbrev=False)
    model = "the folder of a run of `toynn train vit`, or a .safetensors file with timm's names"
    parser.add_argument("--model", required=True, type=Path, metavar="RUN", help=model)
    parser.add_argument("images", nargs="+", metavar="IMAGE", help="a file with a picture")
    top = "how many classes to name (default 5)"
    parser.add_argument("--top", type=whole(1), default=5, metavar="N", help=top)
    THREADS.add_to(parser)
    BACKEND.add_to(parser)
    parser.set_defaults(run=predict)


def predict(arguments: Namespace) -> int:
    """Print the likeliest classes of each picture; return 2 if one cannot be read."""
    if arguments.threads is not None:
        toynn.set_num_threads(arguments.threads)
    path = arguments.model
    if path.suffix == ".gguf" or (path.is_dir() and (path / "model.gguf").exists()):
        raise ConfigError(
            f"--model {path}: it is a model of text, and predict is for models of pictures, as "
            "`toynn train vit` leaves them; `toynn generate` writes with this one"
        )
    path = path / "model.safetensors" if path.is_dir() else path
    engine = ViTEngine.load(path, backend=arguments.backend)
    names = engine.class_names or tuple(map(str, range(engine.config.classes)))
    code = 0
    for paths, pictures, errors in _batches(arguments.images, engine.config):
        for error in errors:
            print_error(str(error))
            code = 2
        if not pictures:
            continue
        rows = engine.probabilities(np.stack(pictures))
        for path, row in zip(paths, rows, strict=True):
            print(harmless(path, ""))
            for label in np.argsort(-row, kind="stable")[: arguments.top].tolist():
                print(harmless(f"  {row[label]:7.2%}  {names[label]}", ""))
    return code


def _batches(
    paths: list[str], config: ViTConfig
) -> Iterator[tuple[list[str], list[Picture], list[DataError]]]:
    """Yield paths, their pictures, and the errors of the paths without one."""
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
