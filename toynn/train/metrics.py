"""The reports of a run: their record, the file of JSON lines."""

import math
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from toynn.formats.logs import Log
from toynn.graph.reports import Shown
from toynn.runs.record import lines_of


@dataclass(frozen=True, repr=False)
class Report(Shown):
    """The state of a run after an iteration; the names are those of mlx-lm.

    A field is None if it has no value: before the first step there is no training loss, and between
    evaluations no validation loss. Tokens are a batch's rows; for a classifier of pictures they are
    pictures.
    """

    iteration: int
    trained_tokens: int
    time: float  # seconds since the start
    train_loss: float | None = None  # mean over the tokens since the last report
    learning_rate: float | None = None
    grad_norm: float | None = None  # of the last step, before clipping
    tokens_per_second: float | None = None  # in training, without evaluation
    peak_memory: int | None = None  # bytes
    val_loss: float | None = None
    val_accuracy: float | None = None  # of classifiers: the share of correct rows, 0 to 1
    skipped_updates: int | None = None  # so far, because a gradient was not finite
    # Packed batches since the last report:
    examples: int | None = None
    tokens: int | None = None  # all tokens
    learned_tokens: int | None = None  # with loss
    filled: float | None = None  # the share of the room that was used, 0 to 1
    #: further figures of a recipe, by names with a slash: rewards/margins
    figures: Mapping[str, float] | None = None

    def __repr__(self) -> str:
        shown = (f"{name}={_short(value)}" for name, value in figures_of(self).items())
        return f"Report({', '.join(shown)})"

    def __str__(self) -> str:
        return "\n".join(f"{name:24} {_short(value)}" for name, value in figures_of(self).items())


def _short(value: float) -> str:
    return f"{value:,}" if isinstance(value, int) else f"{value:.6g}"


class MetricsFile(Log):
    """metrics.jsonl: one object per report; see `Log`.

    ``unit`` replaces "tokens" in the names: trained_images, images_per_second.
    """

    def __init__(self, path: Path, unit: str = "tokens", keep: int | None = None) -> None:
        super().__init__(path, keep)
        self._unit = unit

    def write(self, report: Report) -> None:
        """Append the fields with values. NaN and infinity, which JSON lacks, become null.

        Raises CheckpointError as `Log.append` does.
        """
        figures = figures_of(report, self._unit)
        self.append({k: value if math.isfinite(value) else None for k, value in figures.items()})


def figures_of(report: Report, unit: str = "tokens") -> dict[str, Any]:
    """Return the fields with values, by their names in metrics.jsonl."""
    figures = {name: value for name, value in asdict(report).items() if value is not None}
    figures |= figures.pop("figures", {})
    return {k if "/" in k else k.replace("tokens", unit): v for k, v in figures.items()}


def read_reports(path: Path, unit: str = "tokens", length: int | None = None) -> list[Report]:
    """Return the reports in the first ``length`` bytes of a metrics.jsonl; skip bad lines."""
    names, reports = {each.name for each in fields(Report)}, []
    for line in lines_of(path.read_bytes()[:length]):
        values = {k if "/" in k else k.replace(unit, "tokens"): v for k, v in line.items()}
        values["figures"] = {name: value for name, value in values.items() if "/" in name} or None
        with suppress(TypeError):  # a line that is no report
            reports.append(Report(**{name: values[name] for name in names & values.keys()}))
    return reports
