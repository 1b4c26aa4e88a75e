"""Figures of a model: on a text, on examples, on questions, beside another model."""

import json
import sys
from collections.abc import Callable
from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from tqdm import tqdm

from toynn import evaluation
from toynn.data import jsonl
from toynn.data.text import Corpus
from toynn.engines import SequenceEngine
from toynn.errors import ConfigError, DataError
from toynn.formats.tokenizer import Tokenizer
from toynn.jobs.text import NO_TEXTS
from toynn.system.printing import Lenient, fact, print_line
from toynn.system.reading import open_file

__all__ = ["SEQ", "figures"]

SEQ = 512  # tokens of a window, as at llama-perplexity
QUESTION = "question"  # the key that tells questions from examples


def figures(
    engine: SequenceEngine[Any],
    tokenizer: Tokenizer,
    data: Path | None,
    seq: int | None = None,
    *,
    mask_prompt: bool = True,
    against: Callable[[], SequenceEngine[Any]] | None = None,
    delimiter: str | None = None,
) -> dict[str, Any]:
    """Return perplexity, loss or accuracy of a model, as the data are, by name.

    ``against`` opens another model, from which the distance is measured. ``delimiter`` stands
    between a question and its choices, see ``toynn.evaluation.accuracy``. Without ``data`` it is
    the text that ships with CPython.

    Raises ConfigError for a seq beyond the context, DataError for data that cannot be read.
    """
    seq = seq or min(SEQ, engine.context)
    if seq > engine.context:
        raise ConfigError(f"--seq {seq}: the model sees at most {engine.context} tokens")
    data = None if data is None else jsonl.measured_part(data)
    has_rows = data is not None and (data.is_dir() or data.suffix in NO_TEXTS)
    if data is not None and data.suffix == ".bin":
        raise ConfigError(f"--data {data}: expected a text, or rows; got tokens")
    if data is not None and has_rows and not data.is_dir() and _has_questions(data):
        if against is not None:
            raise ConfigError(f"--against: expected a text or examples as --data; got {data}")
        return _accuracy(data, tokenizer, engine, delimiter)
    if delimiter is not None:
        raise ConfigError("--question-delimiter: expected multiple-choice questions as --data")
    base = None if against is None else against()
    if data is None or not has_rows:
        return _text(data, tokenizer, engine, base, seq)
    return _examples(data, tokenizer, engine, base, seq, mask_prompt)


def _has_questions(path: Path) -> bool:
    """Say whether the first line that is not blank is a question."""
    try:
        with open_file(path) as file:
            line = next((line for line in file if line.strip()), b"")
        row = json.loads(line)
    except OSError as error:
        raise DataError(f"{path}: cannot read: {error.strerror}") from error
    except (ValueError, RecursionError):
        return False  # whoever reads it as examples says what is wrong, and where
    return isinstance(row, dict) and QUESTION in row


class _Bar:
    """A bar on a terminal: a function to be told how far it is."""

    def __init__(self, unit: str) -> None:
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
    found: dict[str, Any] = {"data": corpus.name, "window": seq}
    with closing(_Bar("window")) as bar:
        if base is None:
            scores = evaluation.perplexity(engine, ids, seq, bos, progress=bar)
            found |= {"windows": len(ids) // seq, "tokens": len(ids) // seq * seq}
            return found | _score(scores.second_halves) | _score(scores.every, "_every")
        beside = evaluation.divergence(engine, base, ids, seq, bos, progress=bar)
    return found | {"windows": len(ids) // seq} | _beside(beside)


def _beside(found: evaluation.Divergence) -> dict[str, Any]:
    """Return the figures of a model beside another."""
    scores = _score(found.model) | _score(found.base, "_base")
    own = {k: v for k, v in asdict(found).items() if k not in ("model", "base")}
    far = {f"kl_{k}" if k in ("mean", "error", "largest") else k: own[k] for k in own}
    return scores | far


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
    seq: int,
    mask_prompt: bool,
) -> dict[str, Any]:
    examples, notes = jsonl.read_all(
        data,
        tokenizer,
        seq,
        vocab_size=engine.vocab,
        mask_prompt=mask_prompt,
    )
    tokens = sum(len(examples[k].ids) for k in range(len(examples)))
    found: dict[str, Any] = {"data": str(data), "examples": len(examples)}
    with closing(_Bar("example")) as bar:
        if base is None:
            scores = evaluation.example_scores(engine, examples, tokenizer.eog, progress=bar)
            found |= {"tokens": tokens} | _score(scores.every)
            if scores.stop is not None and scores.rest is not None:
                found |= _score(scores.stop, "_stop") | _score(scores.rest, "_rest")
        else:
            found |= _beside(evaluation.example_divergence(engine, base, examples, progress=bar))
    for note in notes:
        print_line(fact("data", note))
    return found


def _accuracy(
    data: Path, tokenizer: Tokenizer, engine: SequenceEngine[Any], delimiter: str | None
) -> dict[str, Any]:
    questions = evaluation.read_questions(data)
    with closing(_Bar("question")) as bar:
        found = evaluation.accuracy(engine, tokenizer, questions, delimiter, progress=bar)
    return {
        "data": str(data),
        "questions": found.questions,
        "joined": evaluation.delimited(questions, delimiter),
        "accuracy": found.summed,
        "accuracy_normalized": found.normalized,
    }
