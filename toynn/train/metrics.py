"""What a run reports about itself: one record per report, its file of JSON lines, its plot."""

import json
import math
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType

__all__ = ["MetricsFile", "Report", "peak_memory", "plot_losses"]


@dataclass(frozen=True)
class Report:
    """The state of a run after an iteration; the names are those of mlx-lm.

    A field is None where there is nothing to say: before the first step there is no training loss,
    and between evaluations no validation loss. Tokens are a batch's rows: where a recipe classifies
    pictures, they are pictures.
    """

    iteration: int
    trained_tokens: int
    time: float  # seconds since the start
    train_loss: float | None = None  # mean over the tokens since the last report
    learning_rate: float | None = None
    grad_norm: float | None = None  # of the last step, before clipping
    tokens_per_second: float | None = None  # while training: evaluation is not counted
    peak_memory: int | None = None  # bytes
    val_loss: float | None = None
    val_accuracy: float | None = None  # of recipes that classify: the share that is right, 0 to 1
    skipped_updates: int | None = None  # so far, because a gradient was not finite


class MetricsFile:
    """metrics.jsonl: one object per report, written out at once, so that it can be followed.

    ``unit`` takes the place of "tokens" in the names: trained_images, images_per_second.
    """

    def __init__(self, path: Path, unit: str = "tokens") -> None:
        self._unit = unit
        self._file = path.open("a", encoding="utf-8", buffering=1)

    def write(self, report: Report) -> None:
        """Append the fields that are known. NaN and infinity, which JSON lacks, become null."""
        known = {name: value for name, value in asdict(report).items() if value is not None}
        finite = {
            name.replace("tokens", self._unit): value if math.isfinite(value) else None
            for name, value in known.items()
        }
        self._file.write(json.dumps(finite, allow_nan=False) + "\n")

    def __enter__(self) -> "MetricsFile":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._file.close()


def peak_memory() -> int | None:
    """Return the most memory that this process has held so far, in bytes; None on Windows."""
    if sys.platform == "win32":
        return None
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def plot_losses(
    reports: Sequence[Report], path: Path, baselines: dict[str, float], unit: str = "token"
) -> bool:
    """Draw both losses over the iterations; False where matplotlib is not installed."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        return False
    figure = Figure(figsize=(7, 4.5), layout="constrained")
    axes = figure.add_subplot(xlabel="iteration", ylabel=f"loss, nats per {unit}")
    for name, label in (("train_loss", "training"), ("val_loss", "validation")):
        points = [(r.iteration, y) for r in reports if (y := getattr(r, name)) is not None]
        axes.plot([x for x, _ in points], [y for _, y in points], label=label)
    for label, loss in baselines.items():
        axes.axhline(loss, color="grey", linestyle=":", label=label)
    axes.legend()
    figure.savefig(path)
    return True
