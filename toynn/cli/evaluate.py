"""``toynn eval``: how good a model is on a text, on examples, on questions; beside another."""

import json
import sys
import time
from argparse import Namespace
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from tqdm import tqdm

import toynn
from toynn import engines, evaluation
from toynn.cli._adapters import Weighted, add_adapters, combined
from toynn.cli._flags import Once
from toynn.cli._numbers import whole
from toynn.cli._paths import text_model
from toynn.cli._run_flags import BACKEND, THREADS
from toynn.cli._text import fact, print_line
from toynn.cli._text_training import NO_TEXTS
from toynn.data import jsonl
from toynn.data.text import Corpus
from toynn.engines import SequenceEngine
from toynn.errors import ConfigError, DataError
from toynn.formats import bases
from toynn.formats.tokenizer import Tokenizer
from toynn.printing import Lenient
from toynn.reading import open_file

__all__ = ["add_parser"]

SEQ = 512  # tokens of a window, as at llama-perplexity
QUESTION = "question"  # the key that tells questions from examples
DATA = (
    "a text in UTF-8: perplexity; lines of JSON (.jsonl), a table or a folder of texts, as for "
    "training: loss of what is learned; or lines with question, choices, answer: accuracy. Of a "
    "folder with test.jsonl or valid.jsonl that part (default: the text that ships with CPython)"
)


class OneText(Once):
    """Stores what a model is measured on."""

    advice = "a model is measured on one"


def add_parser(commands: Any) -> None:
    """Add the command to the parser's commands."""
    help_ = "measure a model: perplexity, loss, accuracy, distance from another"
    parser = commands.add_parser("eval", help=help_, description=help_, allow_abbrev=False)
    model = "a .gguf file, or a folder: of a run of `toynn train`, or in Hugging Face's format"
    parser.add_argument("-m", "--model", type=Path, required=True, metavar="PATH", help=model)
    add_adapters(parser)
    parser.add_argument("--data", type=Path, metavar="PATH", action=OneText, help=DATA)
    against = "another model, or the same without its adapter: Kullback-Leibler divergence from it"
    parser.add_argument("--against", type=Path, metavar="PATH", help=against)
    seq = f"tokens of a window, or of an example at most (default {SEQ}, or the model's context)"
    parser.add_argument("--seq", type=whole(4), metavar="N", help=seq)
    every = "count prompts and what users say, too"
    parser.add_argument("--no-mask-prompt", action="store_true", help=every)
    parser.add_argument("--json", action="store_true", help="print one JSON object, all in nats")
    THREADS.add_to(parser)
    BACKEND.add_to(parser)
    parser.set_defaults(run=run)


def figures(
    engine: SequenceEngine[Any], tokenizer: Tokenizer, data: Path, seq: int | None = None
) -> dict[str, Any]:
    """Return what the command measures of a model on a file, by name.

    Raises ConfigError for a seq beyond the context, DataError for data that cannot be read.
    """
    given = Namespace(data=data, seq=seq, against=None, no_mask_prompt=False)
    return _figures(given, tokenizer, engine)


def run(arguments: Namespace) -> int:
    """Print the figures."""
    if arguments.threads is not None:
        toynn.set_num_threads(arguments.threads)
    tokenizer, engine = _opened(
        arguments.model, arguments.backend, arguments.adapter, strict=arguments.strict
    )
    start = time.perf_counter()
    found = _figures(arguments, tokenizer, engine)
    seconds = time.perf_counter() - start
    if "tokens" in found:
        found["tokens_per_second"] = found["tokens"] / seconds
    print(json.dumps(found) if arguments.json else _lines(found, seconds))
    return 0


def _figures(
    arguments: Namespace, tokenizer: Tokenizer, engine: SequenceEngine[Any]
) -> dict[str, Any]:
    """Return perplexity, loss or accuracy, as the data are."""
    seq = arguments.seq or min(SEQ, engine.context)
    if seq > engine.context:
        raise ConfigError(f"--seq {seq}: the model sees at most {engine.context} tokens")
    data = None if arguments.data is None else jsonl.measured_part(arguments.data)
    has_rows = data is not None and (data.is_dir() or data.suffix in NO_TEXTS)
    if data is not None and data.suffix == ".bin":
        raise ConfigError(f"--data {data}: expected a text, or rows; got tokens")
    if data is not None and has_rows and not data.is_dir() and _has_questions(data):
        if arguments.against is not None:
            raise ConfigError(f"--against: expected a text or examples as --data; got {data}")
        return _accuracy(data, tokenizer, engine)
    base = None
    if arguments.against is not None:
        base = _opened(arguments.against, arguments.backend)[1]
    if data is None or not has_rows:
        found = _text(data, tokenizer, engine, base, seq)
    else:
        found = _examples(data, tokenizer, engine, base, seq, not arguments.no_mask_prompt)
    return found if base is None else found | {"against": str(arguments.against)}


def _opened(
    model: Path, backend: str, adapter: Sequence[Weighted] | None = None, *, strict: bool = False
) -> tuple[Tokenizer, SequenceEngine[Any]]:
    with bases.open(text_model(model)) as file:
        found = combined(adapter, file, strict=strict)
        return Tokenizer.of(file), engines.frozen(file, found, backend)


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
    for note in notes:
        print_line(fact("data", note))
    tokens = sum(len(examples[k].ids) for k in range(len(examples)))
    found = {"data": str(data), "examples": len(examples)}
    with closing(_Bar("example")) as bar:
        if base is None:
            score = evaluation.example_loss(engine, examples, progress=bar)
            return found | {"tokens": tokens} | _score(score)
        beside = evaluation.example_divergence(engine, base, examples, progress=bar)
    return found | _beside(beside)


def _accuracy(data: Path, tokenizer: Tokenizer, engine: SequenceEngine[Any]) -> dict[str, Any]:
    questions = evaluation.read_questions(data)
    with closing(_Bar("question")) as bar:
        found = evaluation.accuracy(engine, tokenizer, questions, progress=bar)
    return {
        "data": str(data),
        "questions": found.questions,
        "accuracy": found.summed,
        "accuracy_normalized": found.normalized,
    }


def _lines(found: Mapping[str, Any], seconds: float) -> str:
    """Return the figures as lines for people."""
    lines = [fact("data", str(found["data"]))]
    if "questions" in found:
        said = (
            f"{100 * found['accuracy']:.1f} % of {found['questions']:,} questions; by "
            f"length-normalized scores {100 * found['accuracy_normalized']:.1f} %"
        )
        return "\n".join([*lines, fact("accuracy", said), f"time        {seconds:.1f} s"])
    what = f"{found['counted']:,} tokens"
    if "windows" in found:
        what += f", in the second halves of {found['windows']:,} windows of {found['window']}"
    said = f"{found['perplexity']:.4f} +/- {found['perplexity_error']:.5f}"
    lines.append(fact("perplexity", f"{said}, loss {found['loss']:.4f} nats, over {what}"))
    if "perplexity_every" in found:
        said = f"{found['perplexity_every']:.4f} +/- {found['perplexity_error_every']:.5f}"
        said += f", loss {found['loss_every']:.4f}, over all {found['counted_every']:,}"
        lines.append(fact("", said))
    if "kl_mean" in found:
        base = f"{found['perplexity_base']:.4f} +/- {found['perplexity_error_base']:.5f}"
        kl = f"{found['kl_mean']:.6f} +/- {found['kl_error']:.6f} nats"
        same = f"{100 * found['same_top']:.3f} +/- {100 * found['same_top_error']:.3f} %"
        lines += [
            fact("against", f"{found['against']}: perplexity {base}"),
            fact("divergence", f"{kl}, at most {found['kl_largest']:.4f}"),
            fact("same top", f"{same} of the tokens"),
            fact("rms dp", f"{100 * found['rms_delta_p']:.3f} %"),
        ]
    rate = f", {found['tokens_per_second']:,.0f} tokens/s" if "tokens" in found else ""
    return "\n".join([*lines, f"time        {seconds:.1f} s{rate}"])
