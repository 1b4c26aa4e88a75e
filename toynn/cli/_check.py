"""What ``toynn check`` does: it reads data as training would, and prints what it finds."""

import json
import sys
from argparse import Namespace
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from toynn.cli._check_labels import check_labels
from toynn.cli._check_lines import colours, example, histogram
from toynn.data.bounds import Bounds
from toynn.data.examples import held_out
from toynn.data.jsonl import TRAIN, parts_of
from toynn.data.repeats import Cut, Repeats, common, cut_at
from toynn.data.splits import part_of
from toynn.data.survey import Characters, Survey, Vocabulary, survey
from toynn.data.survey_text import held_lines, survey_text
from toynn.errors import ConfigError, DataError, ToynnError
from toynn.formats import bases
from toynn.formats.tokenizer import Tokenizer
from toynn.formats.tokenizer.conversations import unknown_role
from toynn.jobs.lora_options import LoRAOptions
from toynn.jobs.models import for_tied
from toynn.jobs.paths import local_data, local_path, model_file, text_model
from toynn.jobs.text import rows_within
from toynn.jobs.text_options import columns_of
from toynn.jobs.untrained import Row, untrained_rows
from toynn.jobs.weighted import path_and_weight
from toynn.system.printing import counted, harmless, print_fact, size
from toynn.train.progress import Reading

#: What training does to tokens with loss, by the part of a preference that they are in.
AIMS = {"": "with loss"} | dict.fromkeys(("chosen", "wanted"), "made likelier")
AIMS |= dict.fromkeys(("rejected", "unwanted"), "made less likely")
ODD = 5  # most characters that are listed


@dataclass(frozen=True)
class _Source:
    """What was found in a source of data."""

    path: Path
    parts: dict[str, Survey]
    leaks: dict[str, tuple[Repeats, Repeats]]  # by held-out part: whole rows, prompts
    seq: int | None
    odd_roles: tuple[str, ...] = ()  # empty with a model: its chat template decides

    @cached_property
    def cuts(self) -> dict[str, Cut]:
        """What --seq does to the rows of each part."""
        rows = {name: part for name, part in self.parts.items() if part.rows and name != "text"}
        return {
            name: cut_at(part.lengths, part.trained, part.prompts, self.seq)
            for name, part in rows.items()
            if self.seq is not None
        }

    @cached_property
    def empty(self) -> list[str]:
        """Parts without a token with loss, and texts too short for two windows."""
        seq = self.seq
        if text := self.parts.get("text"):
            return ["text"] if text.tokens < (2 * (seq + 1) if seq else 1) else []
        parts = self.parts.items()
        return [
            name for name, part in parts if not (len(part.trained_rows(seq)) if seq else part.rows)
        ]

    @property
    def refused(self) -> bool:
        """Whether training would refuse it."""
        return bool(self.empty) or any(part.refused for part in self.parts.values())

    @property
    def doubtful(self) -> bool:
        """Whether it has something that --strict reports."""
        pairs = (*(part.repeats for part in self.parts.values()), *self.leaks.values())
        rows = [each.rows for pair in pairs for each in pair]
        cut = any(each.cut or each.dropped for each in self.cuts.values())
        unknown = any(part.unknown for part in self.parts.values())
        return any(rows) or cut or unknown or bool(self.odd_roles)


def check(arguments: Namespace) -> int:
    """Print what was found; return 2 if training refuses the data, 1 if --strict finds doubts."""
    _fetch(arguments)
    if arguments.recipe == "classify":
        return check_labels(arguments)
    if arguments.separator is not None:
        raise ConfigError("--separator: it needs --recipe classify")
    model, seq, said = arguments.model, None, ""
    context = None if model is None else bases.context_length(text_model(model))
    tokenizer = _tokenizer(model, arguments.tokenizer)
    if tokenizer is not None:
        seq = arguments.seq or LoRAOptions.seq
        seq, said = rows_within(seq, context or seq)
    elif arguments.seq is not None:
        raise ConfigError("--seq: counting tokens needs a model: name it by --model")
    sources: list[_Source] = []
    for word in arguments.data:
        path, _ = path_and_weight(word, "--data")
        sources.append(_looked_at(path, tokenizer, seq, arguments))
        if said and not arguments.json and len(sources) == 1:
            print(f"{'model':20} {said}")
        if not arguments.json:
            for line in _lines(sources[-1], tokenizer, seq):
                print(line)
    shared = list(_shared(sources))
    used = {
        id: ids
        for each in sources
        for part in each.parts.values()
        for id, ids in part.special.items()
    }
    rows, said_of_rows = _untrained(arguments.model, tokenizer, used)
    if arguments.json:
        told: dict[str, Any] = {"sources": [_object(each, seq) for each in sources]}
        told["shared"] = [{"path": a, "in": b, "rows": repeats.rows} for a, b, repeats in shared]
        told["untrained"] = [row._asdict() for row in rows]
        print(json.dumps(told))
    else:
        for line in said_of_rows:
            print(harmless(f"{'untrained':20} {line}", ""))
    if not arguments.json and len(sources) > 1:
        lines = (
            f"{counted(r.rows, 'row')} of {a} {'is' if r.rows == 1 else 'are'} in {b}, too"
            for a, b, r in shared
        )
        print(harmless(f"{'shared':20} {'; '.join(lines) or 'no row is in two sources'}", ""))
    if any(each.refused for each in sources):
        return 2
    doubtful = shared or rows or any(each.doubtful for each in sources)
    return 1 if arguments.strict and doubtful else 0


def _fetch(arguments: Namespace) -> None:
    """Download what flags name on the hub."""
    arguments.data = [local_data(word, print_fact) for word in arguments.data]
    if arguments.model is not None:
        arguments.model = local_path(arguments.model)
    if arguments.tokenizer is not None:
        arguments.tokenizer = model_file(arguments.tokenizer)


def _tokenizer(model: Path | None, named: str | None) -> Tokenizer | None:
    """Return a model's tokenizer, or the named one; None without either."""
    if model is None or named is None:
        source = text_model(model) if model is not None else named
        return None if source is None else Tokenizer.of(source)
    with bases.open(text_model(model), check=False) as file:
        return Tokenizer.for_model(file, named)


def _untrained(
    model: Path | None, tokenizer: Tokenizer | None, used: Mapping[int, Any]
) -> tuple[list[Row], list[str]]:
    """Return rows of special tokens that the model does not know, and lines about them."""
    if model is None or tokenizer is None or not used:
        return [], []
    try:
        with bases.open(text_model(model), check=False) as file:
            rows = untrained_rows(file, tokenizer, used)
            return rows, list(_of_rows(rows, file.architecture, str(model)))
    except ToynnError as error:  # a folder with a tokenizer and no weights, say
        return [], [f"the rows of special tokens were not checked: {error}"]


def _of_rows(rows: Sequence[Row], arch: str, model: str) -> Iterator[str]:
    """Yield a line for each token that the model does not know, and a line with advice."""
    for id in dict.fromkeys(row.id for row in rows):
        of_token = [row for row in rows if row.id == id]
        where = " and ".join(f"in {row.weight} ({row.why})" for row in of_token)
        yield (
            f"{of_token[0].token}, which is in the data: its row looks untrained {where}, and the "
            f"model gives it p = {of_token[0].p:.1g} where it stands"
        )
    if targets := sorted({target for row in rows for target in row.targets}):
        yield f"train such rows, too: --targets all-linear,{','.join(targets)}"
    elif rows:
        yield for_tied(arch, model)


# -- Looking -----------------------------------------------------------------------------------


def _looked_at(
    path: Path, tokenizer: Tokenizer | None, seq: int | None, arguments: Namespace
) -> _Source:
    """Read a source and count. Raises DataError if it cannot be read."""
    encoder: Any = tokenizer or Characters()
    vocabulary = None if tokenizer is None or tokenizer.of_bytes else _vocabulary(tokenizer)
    options: dict[str, Any] = {"vocabulary": vocabulary}
    with ExitStack() as stack:
        options["progress"] = stack.enter_context(Reading())
        if path.suffix == ".txt" and not path.is_dir():
            parts = {"text": survey_text(path, encoder, **options)}
            return _Source(path, parts, _leaks(parts, seq, 0), seq)
        unnamed = path.is_dir() and part_of(path, TRAIN) is None
        if path.suffix == ".bin" or (unnamed and any(path.glob("*.bin"))):
            raise DataError(f"{path}: it holds tokens already: `toynn train` checks all of them")
        options |= {"mask_prompt": not arguments.no_mask_prompt}
        options |= {"columns": columns_of(arguments.columns)}
        options |= {"bounds": Bounds(arguments.max_line, arguments.max_unpacked)}
        parts = {
            name: survey(file, encoder, encoder.vocab_size, **options)
            for name, file in parts_of(path).items()
        }
    roles = sorted({role for part in parts.values() for role in part.roles})
    odd = () if tokenizer else tuple(role for role in roles if unknown_role(role))
    return _Source(path, parts, _leaks(parts, seq, arguments.seed), seq, odd)


def _vocabulary(tokenizer: Tokenizer) -> Vocabulary:
    """Return the vocabulary, with the tokens that are parts of characters."""
    pieces: dict[int, bytes] = {}
    for id in range(tokenizer.vocab_size):
        piece = tokenizer.piece(id)
        try:
            piece.decode()
        except UnicodeDecodeError:
            pieces[id] = piece
    ids = np.arange(tokenizer.vocab_size)
    fragments, special = (np.isin(ids, list(some)) for some in (pieces, tokenizer.special))
    return Vocabulary(tokenizer.unknown, fragments, pieces, special)


def _leaks(
    parts: dict[str, Survey], seq: int | None, seed: int
) -> dict[str, tuple[Repeats, Repeats]]:
    """Return the held-out rows that are in the training part, too, with their places in files."""
    train = next(iter(parts.values()))
    if len(parts) > 1:
        return {
            name: (common(part.alike, train.alike), common(part.asked, train.asked))
            for name, part in parts.items()
            if name != "train"
        }
    if "text" in parts:
        what, (chosen, held) = "last tenth", (np.array(each, int) for each in held_lines(train))
    else:
        rows = train.trained_rows(seq)
        what, (chosen, held) = "held out", (rows[each] for each in held_out(len(rows), seed))
    repeats = []
    for hashes in (np.array(train.alike), np.array(train.asked)) if len(held) else ():
        count, first = common(hashes[held], hashes[chosen])
        repeats.append(Repeats(count, first and (int(held[first[0]]), int(chosen[first[1]]))))
    return {what: (repeats[0], repeats[1])} if repeats else {}


def _shared(sources: Sequence[_Source]) -> Iterator[tuple[str, str, Repeats]]:
    """Yield two parts of different sources that share rows of the same words, and these rows."""
    parts = [(source, part) for source in sources for part in source.parts.values()]
    for k, (source, part) in enumerate(parts):
        for other, before in parts[:k]:
            repeats = common(part.alike, before.alike)
            if source is not other and repeats.rows:
                yield str(part.path), str(before.path), repeats


# -- Telling -----------------------------------------------------------------------------------


def _lines(source: _Source, tokenizer: Tokenizer | None, seq: int | None) -> Iterator[str]:
    """Yield the lines about a source."""
    unit = "characters" if tokenizer is None else "tokens"
    for name, part in source.parts.items():
        yield harmless(f"== {part.path} ==", "")
        for what, value in _of_part(source, name, part, unit, seq):
            yield harmless(f"{what:20} {value}", "")
        if name != "text" and part.rows:
            yield f"lengths in {unit}"
            yield from histogram(part.lengths, seq)
    for what, pair in source.leaks.items():
        yield harmless(f"{'leaks':20} {_leaked(source, what, pair)}", "")
    first = next(iter(source.parts.values()))
    decode = _characters if tokenizer is None else _decoder(tokenizer)
    for full in first.shown:
        shown = full.cut(seq)
        of = f", {full.name}" if full.name else ""
        cut = f" of {len(full.ids)}" if len(shown.ids) < len(full.ids) else ""
        what = f"{len(shown.ids)}{cut} {unit}, + {sum(shown.trained)} {AIMS[full.name]}"
        yield harmless(f"-- {shown.where}{of}: {what} --", "")
        yield from example(shown, decode, colours(sys.stdout))


def _of_part(
    source: _Source, name: str, part: Survey, unit: str, seq: int | None
) -> Iterator[tuple[str, str]]:
    """Yield the facts about a part: names and values."""
    compression = f", {part.compression}" if part.compression else ""
    yield "file", f"{part.kind}{compression}, {size(part.bytes)}"
    if name == "text":
        yield "length", f"{part.tokens:,} {unit}"
        if seq is not None:
            yield f"--seq {seq}", f"{max(part.tokens - 1, 0) // seq:,} windows; nothing is cut"
    else:
        forms = ", ".join(f"{count:,} of {form}" for form, count in part.forms.items())
        yield "rows", forms or "none that can be read"
        others = [key for key in part.fields if key not in part.read]
        yield "fields", ", ".join(f"{key} ({part.fields[key]:,})" for key in sorted(part.read))
        if others:
            yield "  ignored", ", ".join(f"{key} ({part.fields[key]:,})" for key in others)
        if part.roles:
            yield "roles", ", ".join(sorted(part.roles))
            yield from (("", f"{role!r}: {unknown_role(role)}") for role in source.odd_roles)
    if part.refused:
        yield "refused", f"{counted(part.refused, 'row')}, which training stops at; the first:"
        for error in part.errors:
            yield "", error
    if name in source.empty and not part.refused:
        short = "it is too short for two windows"
        short = short if name == "text" else "no row has a token with loss"
        why = f"{short} at --seq {seq}" if part.rows or part.tokens else "it is empty"
        yield "refused", f"training stops at it: {why}"
    if name != "text" and part.rows:
        yield "lengths", _measures(part)
    if name in source.cuts:
        yield from _cut(source.cuts[name], part, seq or 0)
    what, behind = ("line", " of 32 and more characters") if name == "text" else ("row", "")
    same, alike = part.repeats
    yield "repeats", _repeated(part, same, alike, what, behind)
    if unit == "tokens":
        yield "no token", _unknown(part)


def _measures(part: Survey) -> str:
    values = np.array(part.lengths)
    share = sum(part.trained) / max(1, part.tokens)
    return (
        f"median {int(np.median(values)):,}, mean {values.mean():,.0f}, 95% up to "
        f"{int(np.quantile(values, 0.95)):,}, longest {values.max():,}; {share:.1%} have loss"
    )


def _cut(cut: Cut, part: Survey, seq: int) -> Iterator[tuple[str, str]]:
    count = len(part.lengths)
    what = f"cuts {cut.cut:,} of {count:,} ({cut.cut / count:.1%}), {cut.lost:.1%} of the tokens"
    if cut.dropped:
        what += f"; {cut.dropped:,} are left out: no token with loss is left in them"
    yield f"--seq {seq}", what if cut.cut or cut.dropped else "cuts nothing"
    about = f" (estimated from {cut.sampled:,} rows)" if cut.sampled else ""
    yield (
        "packing",
        f"{counted(cut.rows, 'row')} instead of {count - cut.dropped:,}, "
        f"filled {cut.filled:.1%}{about}",
    )


def _repeated(part: Survey, same: Repeats, alike: Repeats, what: str, behind: str) -> str:
    if not alike.rows:
        return "none"
    text = f"{counted(same.rows, what)}{behind} repeat{'s' if same.rows == 1 else ''} another"
    if alike.rows > same.rows:
        text += f"; {alike.rows:,} apart from case, spaces and punctuation"
    at, of = same.first or alike.first or (0, 0)
    return f"{text}; the first: {part.where(at)} repeats {part.places[of]}"


def _leaked(source: _Source, what: str, pair: tuple[Repeats, Repeats]) -> str:
    held = source.parts.get(what, next(iter(source.parts.values())))
    train = next(iter(source.parts.values()))
    named = {"held out": "what a run would hold out", "last tenth": "the last tenth, held out"}
    parts = []
    for repeats, kind in zip(pair, ("row", "prompt"), strict=True):
        if repeats.first is not None:
            at, of = repeats.first
            parts.append(
                f"{counted(repeats.rows, kind)} of {named.get(what, what)} "
                f"{'is' if repeats.rows == 1 else 'are'} in training, too: "
                f"{held.where(at)} is {train.where(of)}"
            )
    return "; ".join(parts) or f"none from {named.get(what, what)}"


def _unknown(part: Survey) -> str:
    total = max(1, part.tokens)
    text = f"{part.unknown / total:.2%} unknown, {part.fragments / total:.2%} parts of characters"
    if part.odd:
        often = ", ".join(f"{each!r} {count:,}" for each, count in part.odd.most_common(ODD))
        text += f": {often}"
    return text


def _decoder(tokenizer: Tokenizer) -> Callable[[Sequence[int]], str]:
    def decode(ids: Sequence[int]) -> str:
        stream = tokenizer.stream(special=True)
        return "".join([*map(stream.push, ids), stream.end()])

    return decode


def _characters(ids: Sequence[int]) -> str:
    return "".join(map(chr, ids))


def _object(source: _Source, seq: int | None) -> dict[str, Any]:
    """Return a source's object in the JSON output."""
    parts = {}
    for name, part in source.parts.items():
        same, alike = part.repeats
        parts[name] = {
            "path": str(part.path),
            "kind": part.kind,
            "compression": part.compression,
            "bytes": part.bytes,
            "rows": part.rows,
            "forms": dict(part.forms),
            "fields": dict(part.fields),
            "refused": part.refused,
            "errors": part.errors,
            "tokens": part.tokens,
            "tokens_with_loss": sum(part.trained),
            "repeated": same.rows,
            "repeated_words": alike.rows,
            "unknown": part.unknown,
            "fragments": part.fragments,
        }
        if name != "text" and part.rows:
            quantiles = np.quantile(np.array(part.lengths), (0.5, 0.95, 1))
            parts[name]["lengths"] = dict(
                zip(("median", "p95", "longest"), map(float, quantiles), strict=True)
            )
        if name in source.cuts:
            parts[name]["seq"] = {"seq": seq, **source.cuts[name]._asdict()}
    leaks = {k: {"rows": a.rows, "prompts": b.rows} for k, (a, b) in source.leaks.items()}
    return {"path": str(source.path), "parts": parts, "leaks": leaks}
