"""Figures of a model, as `toynn eval` prints them; also its divergence from another model."""

import json
import math
import sys
from collections.abc import Callable, Mapping
from contextlib import closing
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from toynn import evaluation
from toynn.data import jsonl
from toynn.data.image_batches import Fitted, HeldOut
from toynn.data.images import ImageData
from toynn.data.packing import packed_in_order
from toynn.data.preference import read_all_preferences
from toynn.data.reader import ReadOptions
from toynn.data.splits import files_of
from toynn.data.text import Corpus
from toynn.engines import SequenceEngine, ViTEngine
from toynn.engines.objectives import KINDS
from toynn.errors import ConfigError, DataError, NonFiniteError
from toynn.formats.tokenizer import Tokenizer
from toynn.jobs.text import NO_TEXTS
from toynn.jobs.text_options import WINDOW
from toynn.jobs.vit_options import TOP
from toynn.system.printing import Lenient, print_fact
from toynn.system.reading import open_file
from toynn.train import classify
from toynn.train.state import Means

AT_ONCE = 64  # pictures in an evaluation batch
NO_QUESTIONS = "--question-delimiter: it needs multiple-choice questions as --data"
QUESTION = "question"  # the key that tells questions from examples
CHOSEN, LABEL = "chosen", "label"  # the keys that tell preferences from examples


def figures(
    engine: SequenceEngine[Any],
    tokenizer: Tokenizer,
    data: Path | None,
    seq: int | None = None,
    *,
    mask_prompt: bool = True,
    against: Callable[[], SequenceEngine[Any]] | None = None,
    delimiter: str | None = None,
    columns: Mapping[str, str] = MappingProxyType({}),
) -> dict[str, Any]:
    """Return the figures of a model by name: perplexity, loss or accuracy, depending on the data.

    ``against`` opens another model, to measure the divergence from it. ``delimiter`` stands between
    a question and its choices, see ``toynn.evaluation.accuracy``. The default of ``data`` is the
    text that ships with CPython. ``columns`` has the data's column for each field of examples.

    Raises ConfigError for a seq beyond the context, and columns of a text. Raises DataError for
    data that cannot be read.
    """
    seq = seq_of(seq, engine.context)
    data = None if data is None else jsonl.measured_part(data)
    has_rows = data is not None and (data.is_dir() or data.suffix in NO_TEXTS)
    if data is not None and data.suffix == ".bin":
        raise ConfigError(f"--data {data}: expected a text or rows; got a file of tokens")
    row = _first_row(data) if data is not None and has_rows else {}
    if CHOSEN in row:
        losses = ", ".join(KINDS)
        raise ConfigError(f"--data {data}: these are preferences: name a --loss ({losses})")
    if data is not None and QUESTION in row and not columns:
        if against is not None:
            raise ConfigError(f"--against: expected a text or examples as --data; got {data}")
        return _accuracy(data, tokenizer, engine, delimiter)
    if delimiter is not None:
        raise ConfigError(NO_QUESTIONS)
    base = None if against is None else against()
    if data is None or not has_rows:
        if columns:
            raise ConfigError("--columns: it needs rows as --data: .jsonl, .csv, .tsv or .parquet")
        return _text(data, tokenizer, engine, base, seq)
    how = ReadOptions(seq=seq, mask_prompt=mask_prompt, vocab_size=engine.vocab, columns=columns)
    return _examples(data, tokenizer, engine, base, how)


def seq_of(length: int | None, context: int) -> int:
    """Return the most tokens of a window or example; raise ConfigError beyond the context."""
    if length is not None and length > context:
        raise ConfigError(f"--seq {length}: the model sees at most {context} tokens")
    return length or min(WINDOW, context)


def has_preferences(path: Path) -> bool:
    """Whether the first line of a file is a preference. Raises DataError."""
    row = _first_row(jsonl.measured_part(path))
    return CHOSEN in row or isinstance(row.get(LABEL), bool)


def _first_row(path: Path) -> dict[str, Any]:
    """Return the object on the first line that is not blank, or an empty one."""
    if path.is_dir():
        return {}
    try:
        with open_file(files_of(path)[0]) as file:
            line = next((line for line in file if line.strip()), b"")
        row = json.loads(line)
    except OSError as error:
        raise DataError(f"{path}: cannot read: {error.strerror}") from error
    except (ValueError, RecursionError):
        return {}  # reading it as examples will raise the error, with its place
    return row if isinstance(row, dict) else {}


class _Bar:
    """A progress bar on a terminal; call it with the number of items done, and of all items."""

    def __init__(self, unit: str) -> None:
        from tqdm import tqdm

        stream = Lenient(sys.stderr)
        self._bar = tqdm(file=stream, disable=not stream.isatty(), leave=False, unit=unit)

    def __call__(self, done: int, of: int) -> None:
        self._bar.total = of
        self._bar.update(done - self._bar.n)

    def close(self) -> None:
        self._bar.close()


def _text(
    data: Path | None,
    tokenizer: Tokenizer,
    engine: SequenceEngine[Any],
    base: SequenceEngine[Any] | None,
    seq: int,
) -> dict[str, Any]:
    corpus = Corpus.embedded() if data is None else Corpus.read(str(data))
    text = corpus.text.decode().removesuffix("\n")  # as llama-perplexity reads its file
    ids = tokenizer.encode_array(text)
    bos = tokenizer.bos if tokenizer.add_bos else None
    if bos is not None:
        ids = np.concatenate([np.array([bos], np.int32), ids])
    report: dict[str, Any] = {"data": corpus.name, "window": seq}
    with closing(_Bar("window")) as bar:
        if base is None:
            scores = evaluation.perplexity(engine, ids, seq, bos, progress=bar)
            report |= {"windows": len(ids) // seq, "tokens": len(ids) // seq * seq}
            return report | _score(scores.second_halves) | _score(scores.every, "_every")
        beside = evaluation.divergence(engine, base, ids, seq, bos, progress=bar)
    return report | {"windows": len(ids) // seq} | _beside(beside)


def _beside(divergence: evaluation.Divergence) -> dict[str, Any]:
    """Return the figures of a model and its base, and their divergence."""
    scores = (
        _score(divergence.model)
        | _score(divergence.base, "_base")
        | _parts(divergence.stop, divergence.rest)
    )
    numbers = {k: v for k, v in vars(divergence).items() if isinstance(v, float)}
    far = {f"kl_{k}" if k in ("mean", "error", "largest") else k: numbers[k] for k in numbers}
    return scores | far


def _parts(stop: evaluation.Score | None, rest: evaluation.Score | None) -> dict[str, float]:
    """Return the figures of stop tokens and of the rest; nothing if either is missing."""
    if stop is None or rest is None:
        return {}
    return _score(stop, "_stop") | _score(rest, "_rest")


def _score(score: evaluation.Score, behind: str = "") -> dict[str, float]:
    return {
        f"loss{behind}": score.loss,
        f"perplexity{behind}": score.perplexity,
        f"perplexity_error{behind}": score.perplexity_error,
        f"counted{behind}": score.tokens,
    }


def _examples(
    data: Path,
    tokenizer: Tokenizer,
    engine: SequenceEngine[Any],
    base: SequenceEngine[Any] | None,
    how: ReadOptions,
) -> dict[str, Any]:
    examples, notes = jsonl.read_all(data, tokenizer, how)
    tokens = sum(len(examples[k].ids) for k in range(len(examples)))
    report: dict[str, Any] = {"data": str(data), "examples": len(examples)}
    with closing(_Bar("example")) as bar:
        if base is None:
            scores = evaluation.example_scores(engine, examples, tokenizer.eog, progress=bar)
            report |= {"tokens": tokens} | _score(scores.every) | _parts(scores.stop, scores.rest)
        else:
            ends = tokenizer.eog
            report |= _beside(
                evaluation.example_divergence(engine, base, examples, ends, progress=bar)
            )
    for note in notes:
        print_fact("data", note)
    return report


def _accuracy(
    data: Path, tokenizer: Tokenizer, engine: SequenceEngine[Any], delimiter: str | None
) -> dict[str, Any]:
    questions = evaluation.read_questions(data)
    with closing(_Bar("question")) as bar:
        accuracy = evaluation.accuracy(engine, tokenizer, questions, delimiter, progress=bar)
    return {
        "data": str(data),
        "questions": accuracy.questions,
        "joined": evaluation.delimited(questions, delimiter),
        "accuracy": accuracy.summed,
        "accuracy_normalized": accuracy.normalized,
    }


def preference_figures(
    engine: SequenceEngine[Any],
    tokenizer: Tokenizer,
    data: Path,
    seq: int,
    batch: int = 1,
    columns: Mapping[str, str] = MappingProxyType({}),
) -> dict[str, Any]:
    """Return the loss of preferences, and rewards, under the names that training uses.

    ``engine.preference`` determines the loss. The engine reads ``batch`` rows of ``seq`` tokens at
    a time. Each figure is the mean over all preferences of a file; in a folder, of the test part or
    else the validation part.

    Raises DataError for data that cannot be read, NonFiniteError for a loss that is not finite.
    """
    preference, data = engine.preference, jsonl.measured_part(data)
    assert preference is not None
    options = preference.options
    pairs, notes = read_all_preferences(
        data, tokenizer, seq, loss=options.loss, vocab_size=engine.vocab, columns=columns
    )
    means, done = Means(), 0
    with closing(_Bar("pair" if options.paired else "completion")) as bar:
        for each in packed_in_order(pairs, batch):
            means.add({"loss": preference.evaluate(each)} | preference.means(), each.rows)
            engine.check_unchanged()
            done += each.rows
            bar(done, len(pairs))
    figures = _finite(means)
    for note in notes:
        print_fact("data", note)
    unit = "pairs" if options.paired else "completions"
    return {"data": str(data), unit: done, "loss_of": options.loss, "beta": options.beta} | figures


def picture_figures(
    engine: ViTEngine, data: Path | None, top: int = TOP, *, skip_unreadable: bool = False
) -> dict[str, Any]:
    """Return loss and accuracy of a model on labelled pictures.

    A model with more than ``top`` classes also gets its top-``top`` accuracy. The pictures are the
    held-out part of the data, or all of them if nothing is held out. Without ``data`` they are the
    digits that `toynn train vit` holds out with --seed 0.

    Raises DataError for data that cannot be read, or whose classes the model does not have. Raises
    NonFiniteError for a model whose loss is not finite.
    """
    if data is None:
        pictures = ImageData.digits()
    else:
        pictures = ImageData.to_measure(data, skip_unreadable=skip_unreadable)
    numbers, config = _numbers(engine, pictures), engine.config
    fitted = Fitted(pictures.valid, config.image, config.channels, pictures.unreadable)
    means, done = Means(), 0
    with closing(_Bar("picture")) as bar:
        for batch in HeldOut(fitted, AT_ONCE, len(fitted)):
            logits, labels = engine.logits(batch.inputs), numbers[batch.labels]
            each = classify.loss_and_accuracy(logits, labels)
            if config.classes > top:
                each["top_accuracy"] = classify.in_top(logits, labels, top)
            means.add(each, len(labels))
            done += len(labels)
            bar(done, len(fitted))
    figures = _finite(means)
    whole = pictures.valid is pictures.train
    measured_on = {"data": pictures.name, "part": "all" if whole else "held out", "pictures": done}
    skipped = {"skipped": len(pictures.unreadable)} if pictures.unreadable else {}
    return measured_on | {"classes": len(pictures.classes), "top": top} | figures | skipped


def _finite(means: Means) -> dict[str, float]:
    """Return the means. Raises NonFiniteError unless the loss is finite."""
    figures = means.all()
    if not math.isfinite(figures["loss"]):
        raise NonFiniteError("evaluation: the model's loss is not finite: its weights may be bad")
    return figures


def _numbers(engine: ViTEngine, data: ImageData) -> NDArray[np.int32]:
    """Return the model's index of each class of the data, matched by name. Raises DataError."""
    names, classes = engine.class_names, data.classes
    if not names and len(classes) == engine.config.classes:
        return np.arange(len(classes), dtype=np.int32)
    if not names:
        raise DataError(
            f"{data.name}: expected {engine.config.classes} classes, as many as the model has "
            f"(without names); got {len(classes)}"
        )
    if unknown := [name for name in classes if name not in names]:
        raise DataError(
            f"{data.name}: the model has no class {unknown[0]!r}; it has {', '.join(names[:9])}"
            f"{', ...' if len(names) > 9 else ''}"
        )
    return np.array([names.index(name) for name in classes], np.int32)
