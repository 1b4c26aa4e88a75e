"""What a classifier of texts says: of files with labels its figures, of any texts its classes."""

import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from toynn.data import labelled
from toynn.data.batch import IGNORED
from toynn.data.labelled import OUTSIDE, Encoded, HowToRead, LabelledText, LabelledTexts
from toynn.errors import ConfigError, NonFiniteError
from toynn.formats import bases
from toynn.formats.hf.config import CLASSES
from toynn.formats.sentences import MODULES
from toynn.jobs.paths import text_model
from toynn.models import ENCODERS
from toynn.recipes import Classifier
from toynn.recipes.encoders import decided, probabilities
from toynn.train import classify
from toynn.train.state import Means

AT_ONCE = 64  # texts


def of_encoder(path: Path) -> bool:
    """Whether a path is an encoder, or has classes or a pooling. Raises a damaged file's error."""
    if not path.exists() or path.suffix == ".safetensors":
        return False
    if path.is_dir() and not any((path / name).exists() for name in ("config.json", "model.gguf")):
        return False
    with bases.open(text_model(path), check=False) as file:
        known = file.architecture in ENCODERS or CLASSES in file.tensors
        return known or (path / MODULES).exists()


def classifier(path: Path, *, headless: bool = False, **more: Any) -> Classifier:
    """Return the classifier in a folder or file; with ``headless``, perhaps a model of vectors.

    Raises ConfigError for any other model without a head.
    """
    engine = Classifier.load(text_model(path), **more)
    if engine.task.kind == "vectors" and not headless:
        raise ConfigError(
            f"--model {path}: it has no head of classes: `toynn train classify` trains one, "
            "`toynn embed` writes vectors"
        )
    return engine


def _encoded(engine: Classifier, texts: LabelledTexts) -> Encoded:
    encode, fit = engine.tokenizer.encode_many, engine.fitted
    return labelled.encoded(texts, engine.names, encode, fit, engine.longest)


def text_figures(engine: Classifier, data: Path, how: HowToRead) -> dict[str, Any]:
    """Return loss, accuracy, and figures that fit, of a classifier on texts with labels.

    Raises DataError for bad rows and unknown classes, NonFiniteError for a loss that is not finite.
    """
    problem, names = engine.problem, engine.names
    texts = labelled.read(data, replace(how, problem=problem, names=engine.class_names))
    encoded, means, pairs = _encoded(engine, texts), Means(), list[tuple[Any, Any]]()
    for batch in encoded.batches(AT_ONCE):
        outputs = engine.outputs_of(batch)
        means.add(classify.figures_of_batch(problem, outputs, batch.labels), batch.rows)
        pairs.append(pairs_of(problem, batch, outputs, names))
    figures = means.all()
    if not math.isfinite(figures["loss"]):
        raise NonFiniteError("evaluation: the model's loss is not finite: its weights may be bad")
    figures |= classify.joint(problem, pairs, len(names))
    record: dict[str, Any] = {"data": str(data), "texts": len(encoded), "problem": problem}
    record |= {"cut": encoded.cut} | {n.rpartition("/")[2]: x for n, x in figures.items()}
    if problem == "classes":
        labels, told = (np.concatenate([pair[k] for pair in pairs]) for k in (0, 1))
        matrix = classify.confusion(labels, told, len(names)).tolist()
        record |= {"classes": list(names), "confusion": matrix}
    return record


def pairs_of(problem: str, batch: Any, outputs: NDArray[Any], names: Any) -> tuple[Any, Any]:
    """Return the labels and the decisions of a batch, as ``classify.joint`` takes them."""
    labels, decisions = np.asarray(batch.labels), decided(problem, outputs)
    if problem != "tokens":
        return labels, decisions
    parts = ((labels[a:b], decisions[a:b]) for a, b in batch.spans)
    both = [(y[y != IGNORED], x[y != IGNORED]) for y, x in parts]
    known = np.array(names, object)
    return [known[y].tolist() for y, _ in both], [known[x].tolist() for _, x in both]


def judged(engine: Classifier, texts: LabelledTexts) -> Iterator[tuple[LabelledText, NDArray[Any]]]:
    """Yield each text with probabilities (K,), or a number (1,); of words with a row for each."""
    encoded, done = _encoded(engine, texts), 0
    for batch in encoded.batches(AT_ONCE):
        rows = probabilities(engine.problem, engine.outputs_of(batch))
        for k, (begin, end) in enumerate(batch.spans):
            if engine.problem != "tokens":
                yield texts.rows[done], rows[k]
            else:
                first = encoded.first[done]
                outputs = np.full((len(first), rows.shape[1]), np.nan)
                outputs[first >= 0] = rows[begin:end][first[first >= 0]]
                yield texts.rows[done], outputs
            done += 1


def said(engine: Classifier, row: LabelledText, outputs: NDArray[Any], top: int) -> dict[str, Any]:
    """Return what `toynn predict` tells of a text, as a JSON object."""
    names, text = engine.names, row.text
    if engine.problem == "number":
        return {"text": text, "numbers" if len(outputs) > 1 else "number": _number(outputs)}
    if engine.problem != "tokens":
        order = np.argsort(-outputs, kind="stable")[:top].tolist()
        classes = [{"class": names[k], "probability": float(outputs[k])} for k in order]
        holds = {"labels": [names[k] for k in np.flatnonzero(outputs > 0.5)]}
        several = engine.problem == "several"
        return {"text": text, **(holds if several else {}), "classes": classes}
    best = np.where(np.isnan(outputs), -1, outputs).argmax(axis=1)
    outside = np.isnan(outputs[:, 0])  # without a token, or cut away
    tags = [OUTSIDE if out else names[k] for k, out in zip(best, outside, strict=True)]
    words = [piece.strip() for piece, _ in text.pieces]
    spans = []
    for kind, begin, end in sorted(classify.entities(tags), key=lambda entity: entity[1]):
        share = float(np.mean([outputs[k, best[k]] for k in range(begin, end)]))
        places = text.places or [(k, k + 1) for k in range(len(words))]
        where = {"begin": places[begin][0], "end": places[end - 1][1], "class": kind}
        spans.append({**where, "words": words[begin:end], "probability": share})
    return {"words": words, "tags": tags, "spans": spans}


def _number(outputs: NDArray[Any]) -> Any:
    return float(outputs[0]) if len(outputs) == 1 else outputs.tolist()
