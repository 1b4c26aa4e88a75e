"""Recipes that train an encoder: a head of classes or of a score, or vectors."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from toynn.engines.encoder import Encoder, Task, Text
from toynn.errors import ConfigError
from toynn.formats.gguf import Strings
from toynn.models import Source
from toynn.models.encoder import LABELS

#: What the losses of a task say of labels.
_PROBLEMS: dict[str, Any] = {
    "cross_entropy": "classes",
    "binary": "several",
    "squared": "number",
}


class Classifier(Encoder):
    """Train an encoder with a head: classes of texts or of tokens, or numbers.

    ``realize`` makes it ready to step; ``load`` reads one that is trained. hp rows come from
    AdamW.for_lora().
    """

    _declared_by = _built_by = "realize"

    @property
    def problem(self) -> Any:
        """What labels are: classes, several, number or tokens."""
        return "tokens" if self.task.kind == "tokens" else _PROBLEMS[self.task.loss]

    @property
    def is_reranker(self) -> bool:
        """Whether it has one output without a name: a score of two texts."""
        one = (self.task.kind, self.task.labels) == ("sequence", 1)
        return one and self.task.loss != "squared" and self.class_names in ((), ("LABEL_0",))

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the classes, or their numbers."""
        return self.class_names or tuple(map(str, range(self.task.labels)))

    def probabilities(self, texts: Sequence[Text]) -> NDArray[Any]:
        """Return the probability of each class (n, K); of numbers, the numbers.

        Raises what ``outputs`` does.
        """
        return probabilities(self.problem, self.outputs(texts))

    def predict(self, texts: Sequence[Text]) -> list[Any]:
        """Return each text's class, list of classes, or number. For token classes, of each token.

        Raises what ``outputs`` does.
        """
        names, decisions = self.names, decided(self.problem, self.outputs(texts))
        if self.problem == "several":
            return [[names[k] for k in np.flatnonzero(row)] for row in decisions]
        return decisions.tolist() if self.problem == "number" else [names[k] for k in decisions]


class Embedder(Encoder):
    """Train an encoder's vectors of texts, for search and likeness: see ``Encoder.encode``.

    ``realize`` makes it ready to step, ``columns`` says before how many texts make an example.
    hp rows come from AdamW.for_lora().
    """

    _declared_by = _built_by = "realize"


class Reranker(Encoder):
    """Train an encoder to score pairs of texts: one output, whose sigmoid is the score.

    ``realize`` makes it ready to step, ``load`` reads one. hp rows come from AdamW.for_lora().
    """

    _declared_by = _built_by = "realize"

    def _begin(self, file: Source, task: Task | None) -> None:
        super()._begin(file, task)
        names = file.metadata.get(f"{file.architecture}.{LABELS}")
        if isinstance(names, list | Strings) and len(names) != 1:
            raise ConfigError(
                f"{file.path}: its head has {len(names)} outputs; a reranker has 1: name a model "
                "without a head, or a reranker"
            )

    def scores(self, pairs: Sequence[tuple[str, str]]) -> NDArray[Any]:
        """Return the score of each pair, between 0 and 1: (n,). Raises what ``outputs`` does."""
        return probabilities("several", self.outputs(pairs))[:, 0]

    def rank(self, query: str, passages: Sequence[str]) -> list[int]:
        """Return the places of passages, the best first. Raises what ``outputs`` does."""
        scores = self.outputs([(query, passage) for passage in passages])[:, 0]
        return [int(k) for k in np.argsort(-scores, kind="stable")]


def probabilities(problem: str, outputs: NDArray[Any]) -> NDArray[Any]:
    """Return the probabilities of classes from logits (n, K); a number's outputs as they are."""
    x = np.asarray(outputs, np.float64)
    if problem == "number":
        return x
    if problem == "several":
        return np.exp(-np.logaddexp(0, -x))
    e = np.exp(x - x.max(axis=-1, keepdims=True))
    return np.asarray(e / e.sum(axis=-1, keepdims=True))


def decided(problem: str, outputs: NDArray[Any]) -> NDArray[Any]:
    """Return the likeliest class of each row; of several, whether each holds; numbers (n,)."""
    if problem == "number":
        return np.asarray(outputs[:, 0])
    return outputs > 0 if problem == "several" else np.asarray(outputs.argmax(axis=-1))
