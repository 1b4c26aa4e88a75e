"""Count how full packed batches are."""

from dataclasses import dataclass
from typing import Any

from toynn.data.batch import Batch

__all__ = ["Filling"]


@dataclass
class Filling:
    """The sums of the contents of packed batches."""

    examples: int = 0
    tokens: int = 0  # all tokens
    learned: int = 0  # tokens with loss; checkpoints have this name
    room: int = 0  # tokens that there was room for

    def add(self, batch: Batch) -> None:
        """Add a packed batch; windows, which are always full, and preferences are not counted."""
        if batch.segments is not None and batch.bounds is None:
            self.add_counts(batch.examples, batch.tokens, batch.rows, batch.room)

    def add_counts(self, examples: int, tokens: int, learned: int, room: int) -> None:
        """Add the counts of other batches."""
        self.examples += examples
        self.tokens += tokens
        self.learned += learned
        self.room += room

    def figures(self) -> dict[str, Any]:
        """Return the fields of a report; none without packed batches."""
        if not self.room:
            return {}
        return {
            "examples": self.examples,
            "tokens": self.tokens,
            "learned_tokens": self.learned,
            "filled": self.tokens / self.room,
        }
