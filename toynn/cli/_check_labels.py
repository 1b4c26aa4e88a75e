"""``toynn check --recipe classify``: labelled texts as training would read them."""

import json
from argparse import Namespace
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from toynn.cli._check_lines import histogram
from toynn.data.bounds import Bounds
from toynn.data.labelled import HowToRead, LabelledText, Words, attempts
from toynn.data.repeats import near
from toynn.engines.encoder import Encoder
from toynn.errors import DataError
from toynn.formats import bases
from toynn.jobs.paths import text_model
from toynn.jobs.text_options import columns_of
from toynn.options import RecipeOptions
from toynn.system.printing import counted, harmless

SHOWN = 20  # classes that are listed


def check_labels(arguments: Namespace) -> int:
    """Print what is in files of labelled texts; of several, the first is to train on.

    Return 2 if training refuses a row, 1 if --strict finds texts that repeat, leak or are cut.
    """
    columns, bounds = columns_of(arguments.columns), Bounds(arguments.max_line)
    encoder = None if arguments.model is None else _encoder(Path(arguments.model), arguments.seq)
    train, classes, told = dict[str, LabelledText](), dict[Any, int](), list[dict[str, Any]]()
    for word in arguments.data:
        rows: list[LabelledText] = []
        errors: list[str] = []
        how = HowToRead(columns=columns, bounds=bounds, separator=arguments.separator or "")
        for row in attempts(Path(word), how):
            if isinstance(row, DataError):
                errors.append(str(row))
            else:
                rows.append(row)
        facts: dict[str, Any] = {"path": word, "rows": len(rows), "refused": len(errors)}
        facts |= {"errors": errors[:3], "labels": _counts(rows)}
        seen, odd = dict[str, LabelledText](), 0
        for row in rows:
            odd += seen.setdefault(_key(row.text), row).label != row.label
        facts |= {"repeats": len(rows) - len(seen), "with another label": odd}
        facts["near"] = _near({}, seen)
        if train:
            facts["leaks"] = sum(_key(row.text) in train for row in rows)
            facts["near leaks"] = _near(train, seen)
            facts["new labels"] = sorted(facts["labels"].keys() - classes.keys())
        train, classes = train or seen, classes or facts["labels"]
        lengths = [_length(encoder, row.text) for row in rows]
        limit = None if encoder is None else encoder.longest
        facts["longest"] = max(lengths, default=0)
        facts["cut"] = sum(length > limit for length in lengths) if limit else 0
        told.append(facts)
        for line in () if arguments.json else _lines(facts, lengths, limit):
            print(harmless(line, ""))
    if arguments.json:
        print(json.dumps({"sources": told}))
    doubts = ("repeats", "near", "leaks", "near leaks", "cut", "new labels")
    if any(facts["refused"] or not facts["rows"] for facts in told):
        return 2
    return int(arguments.strict and any(facts.get(doubt) for facts in told for doubt in doubts))


def _encoder(path: Path, seq: int | None) -> Encoder:
    """Return an encoder that is only declared: enough for its tokenizer."""
    encoder = Encoder()
    with bases.open(text_model(path), check=False) as file:
        encoder.declare_from(file, RecipeOptions(t_seq=1))
    if seq is not None:
        encoder.sentences = type(encoder.sentences)(length=min(seq, encoder.context))
    return encoder


def _words(text: Any) -> list[str]:
    """Return what is encoded of a text, of two, or of words."""
    if isinstance(text, Words):
        return [piece for piece, _ in text.pieces]
    return [text] if isinstance(text, str) else list(text)


def _key(text: Any) -> str:
    """Return a text without case, and with single spaces."""
    return " ".join(" ".join(_words(text)).casefold().split())


def _near(train: Mapping[str, LabelledText], rows: Mapping[str, LabelledText]) -> list[str]:
    """Return the places of texts that are nearly, not quite, one before, or one of ``train``."""
    every, first = {**train, **rows, **train}, len(train)  # those of train come first
    texts, where = [*every], [row.where for row in every.values()]
    pairs = ((k, of) for k, of in near(texts) if k >= first and (not first or of < first))
    return [f"{where[k]} is nearly {where[of]}" for k, of in pairs]


def _length(encoder: Encoder | None, text: Any) -> int:
    """Return the tokens of a text; without a model, its characters."""
    if encoder is None:
        return sum(map(len, _words(text)))
    parts = [encoder.tokenizer.encode(word, add_special=False) for word in _words(text)]
    joined = [list(chain.from_iterable(parts))] if isinstance(text, Words) else parts
    ids, _, over = encoder.fitted(*joined)
    return len(ids) + over


def _counts(rows: Sequence[LabelledText]) -> dict[str, int]:
    """Return how often each class comes; of numbers, nothing."""
    labels = [row.label if isinstance(row.label, list) else [row.label] for row in rows]
    return dict(Counter(str(name) for each in labels for name in each).most_common())


def _lines(facts: dict[str, Any], lengths: Sequence[int], limit: int | None) -> Iterator[str]:
    yield f"== {facts['path']} =="
    yield f"{'rows':20} {facts['rows']:,}"
    if facts["refused"]:
        refused = counted(facts["refused"], "row")
        yield f"{'refused':20} {refused}, which training stops at; the first:"
        yield from (f"{'':20} {error}" for error in facts["errors"])
    shown = [f"{name} {count:,}" for name, count in list(facts["labels"].items())[:SHOWN]]
    more = len(facts["labels"]) - len(shown)
    yield f"{'labels':20} {', '.join(shown)}{f' and {more:,} more' if more else ''}"
    if lengths:
        unit, values = "characters" if limit is None else "tokens", np.array(lengths)
        said = f"median {int(np.median(values)):,}, longest {values.max():,} {unit}"
        cut = f"; {counted(facts['cut'], 'text')} of more than {limit:,} cut" if limit else ""
        yield f"{'lengths':20} {said}{cut}"
        yield from histogram(lengths, limit)
    odd = f", {facts['with another label']:,} with another label" if facts["repeats"] else ""
    yield f"{'repeats':20} {counted(facts['repeats'], 'text')}, apart from case and spaces{odd}"
    if facts["near"]:
        yield f"{'':20} {len(facts['near']):,} more nearly; the first: {facts['near'][0]}"
    if "leaks" in facts:
        yield f"{'leaks':20} {counted(facts['leaks'], 'text')} of the first file come here, too"
        if some := facts["near leaks"]:
            yield f"{'':20} {len(some):,} more nearly; the first: {some[0]}"
    if facts.get("new labels"):
        yield f"{'new labels':20} {', '.join(facts['new labels'][:SHOWN])}: not in the first file"
