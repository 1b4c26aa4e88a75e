"""The loop's options (length, intervals, metrics), and the result of a run."""

import math
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, ClassVar, Literal

from toynn.errors import ConfigError
from toynn.options import check_ranges, names_of, option, real, whole
from toynn.runs.chart import short
from toynn.runs.html import join, table, tag
from toynn.train.filling import Filling
from toynn.train.metrics import Report, figures_of

__all__ = ["METRICS", "SAVING", "Figures", "LoopOptions", "Means", "Result"]

#: Figures of a batch by name: a mean over its labels, or (sum, count) over some of them.
Figures = Mapping[str, float | tuple[float, int]]

#: Metrics that can choose the best weights: the figure, and whether more is better.
METRICS = {
    "loss": ("loss", False),
    "perplexity": ("loss", False),
    "accuracy": ("accuracy", True),
    "accuracy-normalized": ("accuracy/normalized", True),
    "kl": ("base/kl", False),
    "margins": ("rewards/margins", True),
}

SAVING = "evaluation and saving"


@dataclass(frozen=True)
class LoopOptions:
    """The length of a run, and its intervals; an ``..._every`` of 0 means never.

    Raises ConfigError for a number that is out of range.
    """

    GROUP: ClassVar[str] = SAVING

    steps: int = option(
        "number of weight updates (default {default:g})",
        given=1500,
        group="optimization",
        also="--iters",
        read=whole(1),
        compared=False,
    )
    grad_accum: int = option(
        "batches per weight update: gradient accumulation (default {default:g})",
        1,
        group="optimization",
        also="--grad-accumulation-steps",
        read=whole(1),
    )
    max_grad_norm: float | None = option(
        "clip gradients to this norm; 0 is off (default {default:g})",
        1.0,
        group="optimization",
        read=real(0),
        off=(0,),
    )
    log_every: int = option(
        "steps between reports (default {default:g})",
        10,
        given=25,
        also="--steps-per-report",
        read=whole(1),
        compared=False,
    )
    eval_every: int = option(
        "steps between evaluations; 0: none, and the last weights are kept (default {default:g})",
        250,
        also="--steps-per-eval",
        read=whole(0),
        compared=False,
    )
    save_every: int = option(
        "steps between checkpoints; 0: only when a signal stops the run (default {default:g})",
        0,
        given=250,
        read=whole(0),
        compared=False,
    )
    early_stopping: int = option(
        "stop after N evaluations in a row without a better --metric; 0 is off (default "
        "{default:g})",
        0,
        read=whole(0),
        compared=False,
    )
    # the most batches that are drawn; None: no limit
    batches: int | None = option("", None, read=whole(1), compared=False)
    on_nonfinite: Literal["stop", "skip"] = option(
        "stop, or skip the update, if a gradient is not finite (default {default})",
        "stop",
        group="optimization",
        choices=("stop", "skip"),
        compared=False,
    )
    max_nonfinite: int = option("", 10, compared=False)  # updates that "skip" may skip in one run
    sample_every: int = option(
        "steps between samples of {written} tokens in samples.jsonl; 0: one at the end (default "
        "{default})",
        0,
        read=whole(0),
        compared=False,
    )
    best_by: str = option(
        "metric that selects the best weights; more metrics after commas are only reported: "
        "{metrics} (default {default})",
        "loss",
        name="metric",
        read=names_of(tuple(METRICS)),
        metavar="NAMES",
        words=tuple(METRICS),
    )

    def __post_init__(self) -> None:
        check_ranges(self)
        if self.metrics[0] == "kl":
            raise ConfigError(
                f"best_by=|--metric {self.best_by}: kl is the distance from the base model, which "
                "is least before training, so untrained weights would be kept; put kl second, as "
                "in loss,kl"
            )

    def per_update(self, ranks: int) -> int:
        """Return the batches of an update in a run that ``ranks`` processes began."""
        return self.grad_accum * ranks

    @property
    def metrics(self) -> tuple[str, ...]:
        """The names of the metrics; the first one chooses the best weights."""
        return tuple(self.best_by.split(","))


class Means:
    """Means of figures over batches; each is weighted by the batch's rows, or its own count."""

    def __init__(self) -> None:
        self._totals: dict[str, float] = defaultdict(float)
        self._rows: dict[str, float] = defaultdict(float)

    def add(self, figures: Figures, rows: int) -> None:
        """Add the figures of ``rows`` rows: means, or pairs (sum, count)."""
        for name, figure in figures.items():
            total, own = figure if isinstance(figure, tuple) else (figure * rows, rows)
            self._totals[name] += total
            self._rows[name] += own

    def all(self) -> dict[str, float]:
        """Return the mean of each figure over the batches that had it."""
        return {name: total / self._rows[name] for name, total in self._totals.items()}


@dataclass
class Window:
    """The sums since the last report."""

    loss: float = 0.0  # summed over tokens
    tokens: int = 0
    seconds: float = 0.0
    rate: float | None = None  # of the last step, like the norm
    norm: float | None = None
    filling: Filling = field(default_factory=Filling)
    figures: dict[str, list[float]] = field(default_factory=dict)  # by name: sum, count

    def add_figures(self, found: Mapping[str, tuple[float, float]]) -> None:
        """Add a recipe's figures of a batch."""
        for name, (total, count) in found.items():
            before = self.figures.setdefault(name, [0.0, 0.0])
            self.figures[name] = [before[0] + total, before[1] + count]

    def means(self) -> dict[str, float]:
        """Return the means of the figures."""
        return {name: total / count for name, (total, count) in self.figures.items() if count}


@dataclass
class Part:
    """The sums for the next update."""

    batches: int = 0
    loss: float = 0.0  # summed over tokens
    tokens: int = 0


@dataclass(repr=False)
class Result:
    """The result of a run, and the state of the loop from step to step.

    A notebook shows its reports.
    """

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
    interrupted: bool = False
    signal: int | None = None  # the signal that asked to stop
    stopped_early: bool = False
    reports: list[Report] = field(default_factory=list)

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

    def state(self) -> dict[str, Any]:
        """Return the state to resume from, as JSON values."""
        kept = asdict(self) | {"val_loss": self.val_loss if self.val_loss < math.inf else None}
        kept["train_loss"] = None if math.isnan(self.train_loss) else self.train_loss
        for name in ("interrupted", "signal", "stopped_early", "reports"):
            del kept[name]
        return kept

    @classmethod
    def of(cls, state: dict[str, Any], reports: list[Report]) -> "Result":
        """Return a result from ``state`` and the reports so far."""
        parts: dict[str, Any] = {
            "window": Window(
                **{**state["window"], "filling": Filling(**state["window"]["filling"])}
            ),
            "part": Part(**state["part"]),
            "val_loss": math.inf if state["val_loss"] is None else state["val_loss"],
            "train_loss": math.nan if state["train_loss"] is None else state["train_loss"],
        }
        return cls(**{**state, **parts, "reports": reports})
