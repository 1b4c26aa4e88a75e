"""Plans of a training step: the same bits in more or less memory and time."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from toynn.graph.reports import Cost, Memory

__all__ = ["CHECKPOINTING", "PREPACK", "Plan", "plans"]

#: The choices of both options, the faster one first.
CHECKPOINTING, PREPACK = (False, True), ("auto", "never")


@dataclass(frozen=True)
class Plan:
    """How a training step is computed, and what it takes."""

    checkpointing: bool
    prepack: str
    memory: Memory
    seconds: float  # estimated: see Cost

    def of_file(self, read: int) -> int:
        """Return the bytes of a mapped file that stay in memory, if a step reads ``read`` of it."""
        return max(read, self.memory.mapped) if self.memory.prepacked else read

    def slower(self, than: "Plan") -> str:
        """Return in words how much more time it takes; "" if hardly more."""
        share = f"{self.seconds / than.seconds - 1:.0%}"
        return "" if share == "0%" else f", {share} more time"


def plans(
    costs: Callable[[bool], Mapping[str, Cost]], levels: Iterable[bool] = CHECKPOINTING
) -> list[Plan]:
    """Return plans, the fastest first; ``costs`` are with checkpointing or not, by prepacking.

    A plan that takes no less memory than a faster one is left out.
    """
    found = [
        Plan(again, prepack, cost.memory, cost.seconds)
        for again in levels
        for prepack, cost in costs(again).items()
    ]
    found.sort(key=lambda plan: plan.seconds)
    return [
        plan
        for i, plan in enumerate(found)
        if all(plan.memory.peak < faster.memory.peak for faster in found[:i])
    ]
