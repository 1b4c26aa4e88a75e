"""``toynn predict --model RUN PICTURE...``: the classes of pictures, with their probabilities."""

import csv
import json
import sys
from argparse import Namespace
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from toynn.cli._flags import add
from toynn.cli._text import print_error
from toynn.data.images import Picture, read_picture
from toynn.engines import ViTConfig, ViTEngine
from toynn.errors import DataError
from toynn.jobs.options import BACKEND, THREADS
from toynn.jobs.paths import picture_model
from toynn.options import RecipeOptions, whole
from toynn.system.printing import counted, harmless, print_line

__all__ = ["add_parser"]

BATCH = 16

#: A picture's path, and its likeliest classes with their probabilities.
Row = tuple[str, Sequence[tuple[str, float]]]


def add_parser(commands: Any) -> None:
    """Add the command to the parser's commands."""
    help_ = "classify pictures"
    parser = commands.add_parser("predict", help=help_, description=help_, allow_abbrev=False)
    model = "run folder of `toynn train vit`, or a .safetensors file with timm's names"
    parser.add_argument("-m", "--model", required=True, type=Path, metavar="RUN", help=model)
    images = "picture files, or folders with pictures at any depth"
    parser.add_argument("images", nargs="+", metavar="PICTURE", help=images)
    top = "print the N likeliest classes (default 5)"
    parser.add_argument("--top", type=whole(1), default=5, metavar="N", help=top)
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="print a JSON object for each picture")
    table = "print CSV: path, then classes and probabilities of each picture"
    form.add_argument("--csv", action="store_true", help=table)
    add(parser, THREADS)
    add(parser, BACKEND)
    parser.set_defaults(run=predict)


def predict(arguments: Namespace) -> int:
    """Print the likeliest classes of each picture; return 2 if one cannot be read."""
    path = picture_model(arguments.model)
    options = RecipeOptions(n_threads=arguments.threads)
    engine = ViTEngine.load(path, options, backend=arguments.backend)
    top = min(arguments.top, engine.config.classes)
    if arguments.csv:
        head = [f"{name}_{k}" for k in range(1, top + 1) for name in ("class", "probability")]
        csv.writer(sys.stdout, lineterminator="\n").writerow(["path", *head])
    tell = _as_json if arguments.json else _as_csv if arguments.csv else _as_text
    pictures = _Pictures(arguments.images, engine.config)
    for paths, pixels in pictures.batches():
        rows = engine.probabilities(np.stack(pixels))
        for name, row in zip(paths, rows, strict=True):
            tell((name, _likeliest(engine, row, top)))
    if pictures.others:
        others, first = counted(len(pictures.others), "other file"), pictures.others[0]
        print_line(harmless(f"toynn: {others} skipped; the first: {first}", ""))
    return pictures.code


def _likeliest(engine: ViTEngine, row: Any, top: int) -> list[tuple[str, float]]:
    names = engine.class_names or tuple(map(str, range(engine.config.classes)))
    return [(names[k], float(row[k])) for k in np.argsort(-row, kind="stable")[:top].tolist()]


def _as_text(row: Row) -> None:
    print(harmless(row[0], ""))
    for name, share in row[1]:
        print(harmless(f"  {share:7.2%}  {name}", ""))


def _as_json(row: Row) -> None:
    classes = [{"class": name, "probability": share} for name, share in row[1]]
    print(json.dumps({"path": row[0], "classes": classes}))


def _as_csv(row: Row) -> None:
    cells = [cell for name, share in row[1] for cell in (name, f"{share:.6f}")]
    csv.writer(sys.stdout, lineterminator="\n").writerow([row[0], *cells])


class _Pictures:
    """Read the named pictures, and those in named folders."""

    def __init__(self, paths: Sequence[str], config: ViTConfig) -> None:
        self._paths, self._config = paths, config
        self.others: list[str] = []  # why files in folders are not pictures
        self.code = 0

    def batches(self) -> Iterator[tuple[list[str], list[Picture]]]:
        """Yield paths and their pictures in batches; print an error for a named file that fails."""
        names: list[str] = []
        pictures: list[Picture] = []
        for path, named in self._files():
            try:
                pictures.append(read_picture(path, self._config.image, self._config.channels))
                names.append(path)
            except DataError as error:
                if named:
                    print_error(str(error))
                    self.code = 2
                else:
                    self.others.append(str(error))
            if len(names) == BATCH:
                yield names, pictures
                names, pictures = [], []
        if names:
            yield names, pictures

    def _files(self) -> Iterator[tuple[str, bool]]:
        """Yield files, and whether they were named. Raises DataError for an empty folder."""
        for path in self._paths:
            if not Path(path).is_dir():
                yield path, True
                continue
            below = ((each, each.relative_to(path)) for each in Path(path).rglob("*"))
            paths = sorted(
                each
                for each, name in below
                if each.is_file() and not any(part.startswith(".") for part in name.parts)
            )
            if not paths:
                raise DataError(f"{path}: expected pictures in it; it is empty")
            for each in paths:
                yield str(each), False
