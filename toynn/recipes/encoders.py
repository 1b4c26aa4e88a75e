"""Recipes that train an encoder: a head of classes."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from toynn.engines.encoder import Encoder, Text

__all__ = ["Classifier", "decided", "probabilities"]

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
        names, found = self.names, decided(self.problem, self.outputs(texts))
        if self.problem == "several":
            return [[names[k] for k in np.flatnonzero(row)] for row in found]
        return found.tolist() if self.problem == "number" else [names[k] for k in found]


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
