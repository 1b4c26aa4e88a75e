"""What ``toynn predict`` does: it classifies pictures or texts, and prints the classes."""

import csv
import json
import sys
from argparse import Namespace
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from toynn.cli._text import print_error
from toynn.data.images import Picture, read_picture
from toynn.data.labelled import HowToRead, LabelledText, LabelledTexts, read, words_of
from toynn.engines import ViTConfig, ViTEngine
from toynn.errors import ConfigError, DataError
from toynn.jobs.classified import classifier, judged, of_encoder, said
from toynn.jobs.paths import picture_model
from toynn.jobs.text_options import columns_of
from toynn.options import RecipeOptions
from toynn.system.printing import counted, harmless, print_line

BATCH = 16

#: A picture's path, and its likeliest classes with their probabilities.
Row = tuple[str, Sequence[tuple[str, float]]]


def predict(arguments: Namespace) -> int:
    """Print the likeliest classes of each picture or text; return 2 if one cannot be read."""
    if not (arguments.files or arguments.text):
        raise ConfigError("predict: name files, or texts by --text")
    if of_encoder(arguments.model):
        return _texts(arguments)
    path = picture_model(arguments.model)
    if arguments.text:
        raise ConfigError(f"--text: {arguments.model} is a model of pictures")
    options = RecipeOptions(n_threads=arguments.threads)
    engine = ViTEngine.load(path, options, backend=arguments.backend)
    top = min(arguments.top, engine.config.classes)
    if arguments.csv:
        head = [f"{name}_{k}" for k in range(1, top + 1) for name in ("class", "probability")]
        csv.writer(sys.stdout, lineterminator="\n").writerow(["path", *head])
    tell = _as_json if arguments.json else _as_csv if arguments.csv else _as_text
    pictures = _Pictures(arguments.files, engine.config)
    for paths, pixels in pictures.batches():
        rows = engine.probabilities(np.stack(pixels))
        for name, row in zip(paths, rows, strict=True):
            tell((name, _likeliest(engine, row, top)))
    if pictures.others:
        others, first = counted(len(pictures.others), "other file"), pictures.others[0]
        print_line(harmless(f"toynn: {others} skipped; the first: {first}", ""))
    return pictures.code


def _texts(arguments: Namespace) -> int:
    """Print what a classifier says of each text. Raises DataError for a bad row."""
    options = RecipeOptions(n_threads=arguments.threads)
    engine = classifier(arguments.model, options=options, backend=arguments.backend)
    how = HowToRead(
        problem=engine.problem, columns=columns_of(arguments.columns), needs_label=False
    )
    of_words = engine.problem == "tokens"
    texts = [
        LabelledText(words_of(text) if of_words else text, None, f"--text {number}")
        for number, text in enumerate(arguments.text, 1)
    ]
    texts += [row for path in arguments.files for row in read(path, how).rows]
    writer = csv.writer(sys.stdout, lineterminator="\n")
    for row, judgement in judged(engine, LabelledTexts(engine.problem, texts)):
        told = said(engine, row, judgement, arguments.top)
        if arguments.json:
            print(json.dumps(told, ensure_ascii=False))
        elif arguments.csv:
            writer.writerow([cell for value in told.values() for cell in _cells(value)])
        else:
            for line in _told(told):
                print(harmless(line, ""))
    if engine.cut:
        cut = counted(engine.cut, "text")
        print_line(f"toynn: {cut} of more than {engine.longest:,} tokens cut")
    return 0


def _cells(value: Any) -> Iterator[Any]:
    """Yield the cells of a table for a value that is told of a text."""
    if not isinstance(value, list | tuple):
        yield value
    for each in value if isinstance(value, list | tuple) else ():
        yield from each.values() if isinstance(each, dict) else [each]


def _told(told: Mapping[str, Any]) -> Iterator[str]:
    """Yield the lines about a text."""
    text = told.get("text", told.get("words"))
    yield text if isinstance(text, str) else " ".join(text)
    if "number" in told:
        yield f"  {told['number']:.4f}"
    for each in told.get("classes", ()):
        yield f"  {each['probability']:7.2%}  {each['class']}"
    for each in told.get("spans", ()):
        words = " ".join(each["words"])
        yield f"  {each['probability']:7.2%}  {each['class']}  {words}"


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
