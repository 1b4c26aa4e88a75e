"""Metrics of a text model besides the loss, during training.

The training loop evaluates items of this module after the evaluation batches, and weights their
figures by ``rows``.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from toynn.data.batch import IGNORED
from toynn.data.examples import Examples
from toynn.evaluation import Question, accuracy
from toynn.evaluation.scores import Causal, log_probabilities, read
from toynn.generation.completion import Tokenizer
from toynn.generation.drawing import BatchEngine

TEXTS = 16  # held-out texts on which a model and its base are compared
BASE = "base/kl", "base/same_top"  # the divergence; the share of tokens on which both agree
TEACHER = "teacher/forward_kl", "teacher/agreement"


@dataclass(frozen=True)
class Asked:
    """A question with choices: its accuracy by both of lm-eval's scores."""

    question: Question
    tokenizer: Tokenizer
    delimiter: str | None = None
    rows: ClassVar[int] = 1

    def figures(self, engine: BatchEngine) -> Mapping[str, float]:
        """Return 1 if the right answer scores best, else 0, by both scores."""
        score = accuracy(engine, self.tokenizer, [self.question], self.delimiter)
        return {"accuracy": score.summed, "accuracy/normalized": score.normalized}


@dataclass(frozen=True)
class Beside:
    """A text on which a model's predictions are compared with another's: its base, its teacher."""

    ids: NDArray[np.int32]
    trained: NDArray[np.bool_]  # whether a row has loss
    base: Causal
    names: tuple[str, str] = BASE

    @property
    def rows(self) -> int:
        """Number of rows with loss."""
        return int(self.trained.sum())

    def figures(self, engine: Causal) -> Mapping[str, float]:
        """Return the mean KL divergence from the base, and the share of equal top tokens."""
        both = [read(each, self.ids)[self.trained] for each in (engine, self.base)]
        vocab = min(each.shape[1] for each in both)  # a model may have more rows than tokens
        pairs = zip(*(log_probabilities(each[:, :vocab]) for each in both), strict=True)
        divergence, same = 0.0, 0
        for (_, log_q), (_, log_p) in pairs:
            divergence += float((np.exp(log_p) * (log_p - log_q)).sum())
            same += int((log_q.argmax(axis=1) == log_p.argmax(axis=1)).sum())
        return dict(zip(self.names, (divergence / self.rows, same / self.rows), strict=True))


def beside(valid: Any, seq: int, base: Causal, names: tuple[str, str] = BASE) -> Iterator[Beside]:
    """Yield the first held-out texts: examples, or windows of a long text."""
    if isinstance(valid, Examples):
        for k in range(min(TEXTS, len(valid))):
            ids, labels = valid[k]
            yield Beside(np.asarray(ids, np.int32), labels != IGNORED, base, names)
        return
    for begin in range(0, min(TEXTS * seq, len(valid) - seq + 1), seq):
        ids = np.asarray(valid[begin : begin + seq], np.int32)
        yield Beside(ids, np.ones(len(ids), np.bool_), base, names)


def measured(item: Any, engine: Any) -> Mapping[str, float] | None:
    """Return the figures of an item; None for a batch."""
    return item.figures(engine) if isinstance(item, Asked | Beside) else None
