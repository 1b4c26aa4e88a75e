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
from toynn.cli._numbers import whole
from toynn.cli._paths import text_model
from toynn.cli._run_flags import BACKEND, THREADS
from toynn.cli._text import harmless
from toynn.data import jsonl
from toynn.data.text import Corpus
from toynn.engines import SequenceEngine
from toynn.errors import ConfigError, DataError
from toynn.formats import bases
from toynn.formats.tokenizer import Tokenizer
from toynn.reading import open_file

__all__ = ["add_parser"]

SEQ = 512  # tokens of a window, as at llama-perplexity
QUESTION = "question"  # the key that tells questions from examples
DATA = (
    "a text in UTF-8: perplexity; lines of JSON (.jsonl) as for training: loss of what is learned; "
    "or with question, choices, answer: accuracy (default: the text that ships with CPython)"
)


def add_parser(commands: Any) -> None:
    """Add the command to the parser's commands."""
    help_ = "measure a model: perplexity, loss, accuracy, distance from another"
    parser = commands.add_parser("eval", help=help_, description=help_, allow_abbrev=False)
    model = "a .gguf file, or a folder: of a run of `toynn train`, or in Hugging Face's format"
    parser.add_argument("-m", "--model", type=Path, required=True, metavar="PATH", help=model)
    add_adapters(parser)
    parser.add_argument("--data", type=Path, metavar="PATH", help=DATA)
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
    tokenizer, engine = _opened(arguments.model, arguments.adapter, arguments.backend)
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
    is_json = arguments.data is not None and arguments.data.suffix in (".jsonl", ".json")
    if arguments.against is not None and is_json:
        raise ConfigError(f"--against: expected a text as --data; got {arguments.data}")
    if is_json and _has_questions(arguments.data):
        return _accuracy(arguments, tokenizer, engine)
    if is_json:
        return _examples(arguments, tokenizer, engine, seq)
    return _text(arguments, tokenizer, engine, seq)


def _opened(
    model: Path, adapter: Sequence[Weighted] | None, backend: str
) -> tuple[Tokenizer, SequenceEngine[Any]]:
    with bases.open(text_model(model)) as file:
        found = combined(adapter, file)
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
        self._unit, self._bar = unit, tqdm(disable=not sys.stderr.isatty(), leave=False, unit=unit)

    def __call__(self, done: int, of: int) -> None:
        self._bar.total = of
        self._bar.update(done - self._bar.n)

    def close(self) -> None:
        self._bar.close()


def _text(
    arguments: Namespace, tokenizer: Tokenizer, engine: SequenceEngine[Any], seq: int
) -> dict[str, Any]:
    corpus = Corpus.embedded() if arguments.data is None else Corpus.read(str(arguments.data))
    text = corpus.text.decode().removesuffix("\n")  # as llama-perplexity reads its file
    ids = tokenizer.encode_array(text)
    bos = tokenizer.bos if tokenizer.add_bos else None
    if bos is not None:
        ids = np.concatenate([np.array([bos], np.int32), ids])
    found: dict[str, Any] = {"data": corpus.name, "window": seq}
    with closing(_Bar("window")) as bar:
        if arguments.against is None:
            scores = evaluation.perplexity(engine, ids, seq, bos, progress=bar)
            found |= {"windows": len(ids) // seq, "tokens": len(ids) // seq * seq}
            return found | _score(scores.second_halves) | _score(scores.every, "_every")
        base = _opened(arguments.against, None, arguments.backend)[1]
        beside = evaluation.divergence(engine, base, ids, seq, bos, progress=bar)
    found |= {"against": str(arguments.against), "windows": len(ids) // seq}
    found |= _score(beside.model) | _score(beside.base, "_base")
    own = {k: v for k, v in asdict(beside).items() if k not in ("model", "base")}
    return found | {f"kl_{k}" if k in ("mean", "error", "largest") else k: own[k] for k in own}


def _score(score: evaluation.Score, behind: str = "") -> dict[str, float]:
    return {
        f"loss{behind}": score.loss,
        f"perplexity{behind}": score.perplexity,
        f"perplexity_error{behind}": score.perplexity_error,
        f"counted{behind}": score.tokens,
    }


def _examples(
    arguments: Namespace, tokenizer: Tokenizer, engine: SequenceEngine[Any], seq: int
) -> dict[str, Any]:
    examples, notes = jsonl.read_all(
        arguments.data,
        tokenizer,
        seq,
        vocab_size=engine.vocab,
        mask_prompt=not arguments.no_mask_prompt,
    )
    for note in notes:
        print(f"data        {note}", file=sys.stderr)
    with closing(_Bar("example")) as bar:
        score = evaluation.example_loss(engine, examples, progress=bar)
    tokens = sum(len(examples[k].ids) for k in range(len(examples)))
    found = {"data": str(arguments.data), "examples": len(examples), "tokens": tokens}
    return found | _score(score)


def _accuracy(
    arguments: Namespace, tokenizer: Tokenizer, engine: SequenceEngine[Any]
) -> dict[str, Any]:
    questions = evaluation.read_questions(arguments.data)
    with closing(_Bar("question")) as bar:
        found = evaluation.accuracy(engine, tokenizer, questions, progress=bar)
    return {
        "data": str(arguments.data),
        "questions": found.questions,
        "accuracy": found.summed,
        "accuracy_normalized": found.normalized,
    }


def _lines(found: Mapping[str, Any], seconds: float) -> str:
    """Return the figures as lines for people."""
    lines = [f"data        {harmless(str(found['data']), '')}"]
    if "questions" in found:
        lines.append(
            f"accuracy    {100 * found['accuracy']:.1f} % of {found['questions']:,} questions; by "
            f"length-normalized scores {100 * found['accuracy_normalized']:.1f} %"
        )
        return "\n".join([*lines, f"time        {seconds:.1f} s"])
    what = f"{found['counted']:,} tokens"
    if "windows" in found:
        what += f", in the second halves of {found['windows']:,} windows of {found['window']}"
    lines.append(
        f"perplexity  {found['perplexity']:.4f} +/- {found['perplexity_error']:.5f}, loss "
        f"{found['loss']:.4f} nats, over {what}"
    )
    if "perplexity_every" in found:
        lines.append(
            f"            {found['perplexity_every']:.4f} +/- "
            f"{found['perplexity_error_every']:.5f}, loss {found['loss_every']:.4f}, over all "
            f"{found['counted_every']:,}"
        )
    if "kl_mean" in found:
        lines += [
            f"against     {harmless(found['against'], '')}: perplexity "
            f"{found['perplexity_base']:.4f} +/- {found['perplexity_error_base']:.5f}",
            f"divergence  {found['kl_mean']:.6f} +/- {found['kl_error']:.6f} nats, at most "
            f"{found['kl_largest']:.4f}",
            f"same top    {100 * found['same_top']:.3f} +/- {100 * found['same_top_error']:.3f} % "
            "of the tokens",
            f"rms dp      {100 * found['rms_delta_p']:.3f} %",
        ]
    rate = f", {found['tokens_per_second']:,.0f} tokens/s" if "tokens" in found else ""
    return "\n".join([*lines, f"time        {seconds:.1f} s{rate}"])
