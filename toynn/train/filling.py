"""How full batches of examples are."""

from dataclasses import dataclass
from typing import Any

from toynn.data.batch import Batch

__all__ = ["Filling"]


@dataclass
class Filling:
    """What packed batches had in them, added up."""

    examples: int = 0
    tokens: int = 0  # that were read
    learned: int = 0  # with loss; checkpoints have this name
    room: int = 0  # tokens that there could have been

    def add(self, batch: Batch) -> None:
        """Count a batch of packed examples; windows, which are always full, are not counted."""
        if batch.segments is not None and batch.bounds is None:
            self.add_counts(batch.examples, batch.tokens, batch.rows, batch.room)

    def add_counts(self, examples: int, tokens: int, learned: int, room: int) -> None:
        """Count what other batches had in them."""
        self.examples += examples
        self.tokens += tokens
        self.learned += learned
        self.room += room

    def figures(self) -> dict[str, Any]:
        """Return the fields of a report; none, if there was no such batch."""
        if not self.room:
            return {}
        return {
            "examples": self.examples,
            "tokens": self.tokens,
            "learned_tokens": self.learned,
            "filled": self.tokens / self.room,
        }
