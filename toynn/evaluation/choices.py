"""Multiple choice: the answer that a model finds likeliest.

    score(choice) = sum of log p over the choice's tokens, after the question
    length-normalized: score / number of the choice's characters

These are acc and acc_norm of the Language Model Evaluation Harness: Gao et al.,
doi:10.5281/zenodo.12608602. A delimiter (the harness's target_delimiter) joins a question and a
choice; its tokens count as the choice's. By default it is a space, or nothing after a question that
ends in whitespace.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from toynn.data.objects import ROWS
from toynn.errors import ConfigError, DataError
from toynn.evaluation.perplexity import Progress, silent
from toynn.evaluation.scores import finite, losses
from toynn.generation.completion import Tokenizer, begun_ids
from toynn.generation.drawing import BatchEngine, grown
from toynn.system.reading import read_bytes

SPACE = " "  # lm-eval's default between question and choice
ROWS_READ = 8  # continuations that are read at a time; more take memory


class Question(NamedTuple):
    """A question, its choices, and the index of the right one."""

    question: str
    choices: tuple[str, ...]
    answer: int


@dataclass(frozen=True)
class Accuracy:
    """Shares of the questions whose right answer scored best, and the number of questions."""

    summed: float
    normalized: float
    questions: int


def read_questions(path: str | Path) -> list[Question]:
    """Read lines of {"question": ..., "choices": [...], "answer": ...}.

    The answer is an index from 0, a letter from A, or the text of a choice. Raises DataError, which
    names file and line.
    """
    lines = read_bytes(path).split(b"\n")
    questions = [
        _question(f"{path}:{number}", line) for number, line in enumerate(lines, 1) if line.strip()
    ]
    if not questions:
        raise DataError(f"{path}: expected a question per line; got none")
    return questions


def _question(where: str, line: bytes) -> Question:
    try:
        row = ROWS.decode(line.decode("utf-8-sig"))
    except (ValueError, RecursionError) as error:
        raise DataError(f"{where}: not JSON: {error}") from error
    keys = ("question", "choices", "answer")
    if not isinstance(row, dict) or any(key not in row for key in keys):
        got = ", ".join(row) if isinstance(row, dict) else type(row).__name__
        raise DataError(f"{where}: expected an object with {', '.join(keys)}; got {got}")
    question, choices = row["question"], row["choices"]
    texts = isinstance(choices, list) and all(isinstance(c, str) and c for c in choices)
    if not isinstance(question, str) or not texts or len(choices) < 2:
        raise DataError(
            f"{where}: expected a question of text and at least 2 choices of text; got "
            f"{question!r} and {choices!r}"
        )
    return Question(question, tuple(choices), _answer(where, choices, row["answer"]))


def _answer(where: str, choices: Sequence[str], answer: Any) -> int:
    if isinstance(answer, int) and not isinstance(answer, bool) and 0 <= answer < len(choices):
        return answer
    if isinstance(answer, str):
        if choices.count(answer) == 1:
            return choices.index(answer)
        letter = ord(answer) - ord("A") if len(answer) == 1 else -1
        if 0 <= letter < len(choices):
            return letter
    raise DataError(
        f"{where}: answer: expected 0 to {len(choices) - 1}, A to "
        f"{chr(ord('A') + len(choices) - 1)}, or the text of one choice; got {answer!r}"
    )


def log_likelihoods(
    engine: BatchEngine,
    tokenizer: Tokenizer,
    pairs: Sequence[tuple[str, str]],
    rows: int = ROWS_READ,
) -> Iterator[tuple[float, bool]]:
    """Yield log p of each continuation after its context, and whether its tokens are the likeliest.

    ``pairs`` are contexts with continuations. ``rows`` are read at a time, a context that follows
    itself once. Whitespace at the end of a context belongs to the continuation, because the
    tokenizer reads both as one text. Without a context the continuation follows BOS, or EOS if
    there is no BOS. A text that exceeds the model's context is cut at its beginning.

    Raises DataError if a continuation alone exceeds the context, NonFiniteError for NaN or infinite
    logits.
    """
    all_rows = [_Continuation(*_split(tokenizer, *pair), engine.context) for pair in pairs]
    if all_rows:
        longest = max(len(each.seen) + each.left for each in all_rows)
        for each in grown(engine, all_rows, rows, longest, []):
            yield each.log_p, each.likeliest


def _split(tokenizer: Tokenizer, context: str, continuation: str) -> tuple[list[int], int]:
    """Return the ids of both, and where the continuation begins."""
    spaces = len(context) - len(context.rstrip())
    if spaces:
        context, continuation = context[:-spaces], context[-spaces:] + continuation
    whole, split = begun_ids(tokenizer, context + continuation), 0
    if context:  # its last token may have merged with the continuation
        split = min(len(begun_ids(tokenizer, context)), len(whole) - 1)
    if split:
        return whole, split
    plain = tokenizer.encode(context + continuation, add_special=False)
    return [beginning(tokenizer), *plain], 1


class _Continuation:
    """A sequence that grows by known tokens, and adds up their log probabilities."""

    def __init__(self, ids: list[int], split: int, context: int) -> None:
        if len(ids) - split > context:
            raise DataError(
                f"evaluation: a continuation of {len(ids) - split} tokens exceeds the model's "
                f"context of {context}"
            )
        self.seen, self._answers = ids[max(len(ids) - 1 - context, 0) : split], ids[split:]
        self.log_p, self.likeliest, self.left = 0.0, True, len(self._answers)

    @property
    def goes_on(self) -> bool:
        return self.left > 0

    def take(self, logits: NDArray[np.float32]) -> None:
        answer = self._answers[-self.left]
        nats, likeliest = losses(finite(logits[None]), np.array([answer]))
        self.log_p -= float(nats[0])
        self.likeliest, self.left = self.likeliest and bool(likeliest[0]), self.left - 1
        self.seen.append(answer)


def beginning(tokenizer: Tokenizer) -> int:
    """Return the token to put before a text without a context: BOS, or else EOS.

    Raises ConfigError if there is neither.
    """
    first = tokenizer.bos if tokenizer.bos is not None else tokenizer.eos
    if first is None:
        raise ConfigError("evaluation: the model has no BOS or EOS to begin a text with")
    return first


def delimiter_of(question: str, delimiter: str | None) -> str:
    """Return the delimiter between a question and its choices: the given one, or the default."""
    if delimiter is not None:
        return delimiter
    return "" if question[-1:].isspace() else SPACE


def delimited(questions: Sequence[Question], delimiter: str | None) -> str:
    """Return words that say how questions and choices are joined."""
    bare = sum(not delimiter_of(each.question, delimiter) for each in questions)
    between = (
        f"with {json.dumps(SPACE if delimiter is None else delimiter, ensure_ascii=False)} between"
    )
    if delimiter is not None or not bare:
        return between
    if bare == len(questions):
        return "with nothing between: all questions end in whitespace"
    return f"{between}, or nothing after a question that ends in whitespace ({bare:,})"


def accuracy(
    engine: BatchEngine,
    tokenizer: Tokenizer,
    questions: Sequence[Question],
    delimiter: str | None = None,
    *,
    progress: Progress = silent,
) -> Accuracy:
    """Return the share of questions that a model answers right, by both scores.

    ``delimiter`` stands between question and choice. None: a space, or nothing after whitespace.
    """
    pairs = [
        (question, delimiter_of(question, delimiter) + choice)
        for question, choices, _ in questions
        for choice in choices
    ]
    found, summed, normalized = log_likelihoods(engine, tokenizer, pairs), 0, 0
    for done, (_, choices, answer) in enumerate(questions, 1):
        scores = np.array([log_p for log_p, _ in islice(found, len(choices))])
        summed += int(scores.argmax()) == answer
        characters = [len(choice) for choice in choices]
        normalized += int((scores / characters).argmax()) == answer
        progress(done, len(questions))
    return Accuracy(summed / len(questions), normalized / len(questions), len(questions))
