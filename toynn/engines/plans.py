"""Plans of a training step: more or less memory and time, with the same bits or rounded ones."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from toynn.graph.reports import Cost, Memory


class Level(NamedTuple):
    """What the backward pass recomputes, and how the rest is kept: options by their names."""

    recompute_cheap: bool
    checkpointing: bool
    activations: str = "float32"
    keep_attention: bool = False

    @classmethod
    def of(cls, options: Mapping[str, Any]) -> "Level":
        """Return the level that options ask for."""
        return cls(*(options[name] for name in cls._fields))

    def with_more(self, given: "Level") -> "Level":
        """Return it with what saves memory in a given level, too.

        Beside bfloat16, kept outputs of attention are rounded, so they must be asked for.
        """
        cheap, blocks = (mine or its for mine, its in zip(self[:2], given[:2], strict=True))
        keep = self.keep_attention and given.activations == "float32"
        keep = blocks and (keep or given.keep_attention)
        return Level(cheap, blocks, given.activations, keep)


#: The choices, the fastest first.
LEVELS = (
    *(Level(False, False), Level(True, False)),
    *(Level(False, True, keep_attention=True), Level(False, True)),
)
#: With rounded gradients. The user chooses these, not toynn.
ROUNDED = Level(False, False, "bfloat16"), Level(False, True, "bfloat16")
PREPACK = "auto", "never"
#: The options that a plan sets.
OPTIONS = (*Level._fields, "prepack")


@dataclass(frozen=True)
class Plan:
    """How a training step is computed, and what it takes."""

    level: Level
    prepack: str
    memory: Memory
    seconds: float  # estimated: see Cost

    @property
    def options(self) -> dict[str, bool | str]:
        """The options that ask for it, by name."""
        return {**self.level._asdict(), "prepack": self.prepack}

    @property
    def name(self) -> str:
        """What it does, in words; "" if it does nothing in particular."""
        words = {
            "prepacking": self.memory.prepacked > 0,
            "cheap recomputing": self.level.recompute_cheap,
            "checkpointing": self.level.checkpointing,
            "attention kept": self.level.keep_attention,
            "bfloat16 activations": self.level.activations == "bfloat16",
        }
        *most, last = [word for word, on in words.items() if on] or [""]
        return f"with {', '.join(most)}{' and ' if most else ''}{last}" if last else ""

    def of_file(self, read: int) -> int:
        """Return the bytes of a mapped file that stay in memory, if a step reads ``read`` of it."""
        return max(read, self.memory.mapped) if self.memory.prepacked else read

    def slower(self, than: "Plan") -> str:
        """Return in words how much more time it takes; "" if hardly more."""
        share = f"{self.seconds / than.seconds - 1:.0%}"
        return "" if share == "0%" else f", {share} more time"


def plans(
    costs: Callable[[Level], Mapping[str, Cost]], levels: Iterable[Level] = LEVELS
) -> list[Plan]:
    """Return plans, the fastest first; ``costs`` are those of a level, by prepacking.

    A plan that takes no less memory than a faster one is left out.
    """
    choices = [
        Plan(level, prepack, cost.memory, cost.seconds)
        for level in levels
        for prepack, cost in costs(level).items()
    ]
    choices.sort(key=lambda plan: plan.seconds)
    return [
        plan
        for i, plan in enumerate(choices)
        if all(plan.memory.peak < faster.memory.peak for faster in choices[:i])
    ]


def every_plan(costs: Callable[[Level], Mapping[str, Cost]]) -> list[Plan]:
    """Return the plans, the fastest first; then those that round gradients, in the same order."""
    return plans(costs) + plans(costs, ROUNDED)
