"""The state of a run: what the loop carries from step to step.

Everything in ``State`` is saved in checkpoints as it is. ``Result`` adds what only this process
knows: the reports so far, and how the run ended.
"""

import math
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from toynn.data.batch import Batch
from toynn.runs.chart import short
from toynn.runs.html import join, table, tag
from toynn.system.machine import peak_memory
from toynn.train.metrics import Report, figures_of

#: Figures of a batch by name: a mean over its labels, or (sum, count) over some of them.
Figures = Mapping[str, float | tuple[float, float]]


class Means(dict[str, list[float]]):
    """Means of figures over batches: by name, a sum and the count that it is divided by."""

    def add(self, figures: Figures, rows: int) -> None:
        """Add the figures of ``rows`` rows: means, or pairs (sum, count)."""
        for name, figure in figures.items():
            total, count = figure if isinstance(figure, tuple) else (figure * rows, rows)
            before = self.get(name, (0.0, 0.0))
            self[name] = [before[0] + total, before[1] + count]

    def all(self) -> dict[str, float]:
        """Return the mean of each figure over the batches that had it."""
        return {name: total / count for name, (total, count) in self.items() if count}


@dataclass
class Filling:
    """How full packed batches are."""

    examples: int = 0
    tokens: int = 0  # all tokens
    learned: int = 0  # tokens with loss
    room: int = 0  # tokens that there was room for

    def add(self, batch: Batch) -> None:
        """Add a packed batch; windows, which are always full, and preferences are not counted."""
        if batch.segments is not None and batch.bounds is None:
            self.extend(Filling(batch.examples, batch.tokens, batch.rows, batch.room))

    def extend(self, other: "Filling") -> None:
        """Add the counts of other batches."""
        for name, count in vars(other).items():
            setattr(self, name, getattr(self, name) + count)

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


@dataclass
class Part:
    """The sums of the micro-batches so far, for the next update."""

    batches: int = 0
    loss: float = 0.0  # summed over tokens
    tokens: int = 0  # with loss
    filling: Filling = field(default_factory=Filling)

    def add(self, rows: int, loss: float) -> None:
        """Add a micro-batch of ``rows`` tokens with a mean loss."""
        self.loss += loss * rows
        self.tokens += rows


@dataclass
class Window:
    """The sums of the updates since the last report."""

    loss: float = 0.0  # summed over tokens
    tokens: int = 0
    seconds: float = 0.0
    rate: float | None = None  # of the last step, like the norm
    norm: float | None = None
    filling: Filling = field(default_factory=Filling)
    figures: Means = field(default_factory=Means)


@dataclass
class State:
    """All that a resumed run needs of the loop, besides the recipe and the position in the data."""

    iterations: int = 0
    updates: int = 0  # iterations that were not skipped
    trained_tokens: int = 0
    seconds: float = 0.0
    train_loss: float = math.nan  # mean over the steps of the last report
    val_loss: float = math.inf  # of the best weights
    best_iteration: int = 0
    #: for each validation batch, the metric summed over its rows; less is better
    best_losses: list[float] = field(default_factory=list)
    #: and the loss, which decides between equal metrics
    tie_losses: list[float] = field(default_factory=list)
    not_better: int = 0  # evaluations in a row without a better one
    empty_batches: int = 0  # drawn and skipped: they had no loss
    skipped_updates: int = 0  # because a gradient was not finite
    window: Window = field(default_factory=Window)
    part: Part = field(default_factory=Part)
    due: bool = True  # whether the report of this iteration is still to come
    sample_due: bool = False  # whether a sample is still to come


@dataclass(repr=False)
class Result(State):
    """The result of a run, and its state while it trains. A notebook shows its reports."""

    interrupted: bool = False
    signal: int | None = None  # the signal that asked to stop
    stopped_early: bool = False
    saved: bool = False  # whether a signal has made it save
    began: float = field(default_factory=time.perf_counter)  # less the seconds before a resume
    reports: list[Report] = field(default_factory=list)

    def state(self) -> dict[str, Any]:
        """Return the state to resume from, as JSON values."""
        self.seconds = time.perf_counter() - self.began
        return asdict(State(*(getattr(self, each.name) for each in fields(State))))

    @classmethod
    def of(cls, state: dict[str, Any]) -> "Result":
        """Return a result from what ``state`` returned.

        An older state has None for numbers that are not finite, and counts the filling of waiting
        micro-batches in the window.
        """
        window, part = state["window"], {"filling": {}, **state["part"]}
        nested = {
            "window": Window(
                **window
                | {"filling": Filling(**window["filling"]), "figures": Means(window["figures"])}
            ),
            "part": Part(**part | {"filling": Filling(**part["filling"])}),
            "val_loss": math.inf if state["val_loss"] is None else state["val_loss"],
            "train_loss": math.nan if state["train_loss"] is None else state["train_loss"],
        }
        return cls(**state | nested)

    def report(self, figures: Mapping[str, float]) -> Report:
        """Return a report of the window, with the figures of an evaluation; begin a new window."""
        window, trained = self.window, self.window.tokens > 0
        if trained:
            self.train_loss = window.loss / window.tokens
        report = Report(
            iteration=self.iterations,
            trained_tokens=self.trained_tokens,
            time=time.perf_counter() - self.began,
            train_loss=self.train_loss if trained else None,
            learning_rate=window.rate,
            grad_norm=window.norm if trained else None,
            tokens_per_second=window.tokens / window.seconds if trained else None,
            peak_memory=peak_memory(),
            val_loss=figures.get("loss"),
            val_accuracy=figures.get("accuracy"),
            skipped_updates=self.skipped_updates or None,
            figures=window.figures.all()
            | {f"val_{name}": each for name, each in figures.items() if "/" in name}
            or None,
            **window.filling.figures(),
        )
        self.window = Window()
        self.reports.append(report)
        return report

    def __repr__(self) -> str:
        held_out = f", validation {self.val_loss:.4f}" if self.val_loss < math.inf else ""
        best = f", best at step {self.best_iteration}" if self.best_losses else ""
        return f"Result({self.iterations} steps, training {self.train_loss:.4f}{held_out}{best})"

    def _repr_html_(self) -> str:
        rows = [figures_of(report) for report in self.reports]
        names = list(dict.fromkeys(name for row in rows for name in row))
        cells = [
            tuple("" if name not in row else short(row[name]) for name in names) for row in rows
        ]
        return join(tag("p", repr(self)), table(tuple(names), cells, words=0))
