"""The loop's options: length, intervals, metrics."""

from dataclasses import dataclass
from typing import Literal

from toynn.errors import ConfigError
from toynn.options import check_fields, names_of, option, real, whole

#: Metrics that can choose the best weights: the figure, and whether more is better. Output names a
#: figure as its metric: see ``toynn.runs.series``.
METRICS = {
    "loss": ("loss", False),
    "perplexity": ("loss", False),
    "accuracy": ("accuracy", True),
    "accuracy-normalized": ("accuracy/normalized", True),
    "kl": ("base/kl", False),
    "margins": ("rewards/margins", True),
    "reward": ("rewards/mean", True),
    "reverse-kl": ("teacher/reverse_kl", False),
    "macro-f1": ("classes/macro_f1", True),
    "micro-f1": ("classes/micro_f1", True),
    "matthews": ("classes/matthews", True),
    "spearman": ("numbers/spearman", True),
    "entity-f1": ("entities/f1", True),
    "ndcg": ("retrieval/ndcg@10", True),
    "mrr": ("retrieval/mrr@10", True),
    "recall": ("retrieval/recall@10", True),
}


@dataclass(frozen=True)
class LoopOptions:
    """The length of a run, and its intervals; an ``..._every`` of 0 means never.

    Raises ConfigError for a number that is out of range.
    """

    steps: int = option(read=whole(1), compared=False)
    grad_accum: int = option(default=1, read=whole(1))
    max_grad_norm: float | None = option(default=1.0, read=real(0))  # 0 or None: no clipping
    log_every: int = option(default=10, read=whole(1), compared=False)
    eval_every: int = option(default=250, read=whole(0), compared=False)
    save_every: int = option(default=0, read=whole(0), compared=False)
    early_stopping: int = option(default=0, read=whole(0), compared=False)
    # the most batches that are drawn; None: no limit
    batches: int | None = option(default=None, read=whole(1), compared=False)
    on_nonfinite: Literal["stop", "skip"] = option(default="stop", compared=False)
    # updates that "skip" may skip in one run
    max_nonfinite: int = option(default=10, read=whole(0), compared=False)
    sample_every: int = option(default=0, read=whole(0), compared=False)
    best_by: str = option(default="loss", read=names_of(tuple(METRICS)))

    def __post_init__(self) -> None:
        check_fields(self)
        if self.max_grad_norm == 0:
            object.__setattr__(self, "max_grad_norm", None)
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
