"""The loop's options: length, intervals, metrics."""

from dataclasses import dataclass
from typing import ClassVar, Literal

from toynn.errors import ConfigError
from toynn.options import check_ranges, names_of, option, real, whole

__all__ = ["METRICS", "SAVING", "LoopOptions"]

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
