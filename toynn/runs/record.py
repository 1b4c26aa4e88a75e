"""Read a run folder, complete or not."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any

from toynn.errors import DataError
from toynn.system.reading import read_bytes

CONFIG, METRICS, NOTES = "config.toml", "metrics.jsonl", "run.json"
#: Sizes of numbers that are shown: a number outside is damage, and charts cannot scale to it.
LEAST, MOST = 1e-100, 1e100
STATES = {
    "done": "done",
    "early": "stopped early: the metric did not improve",
    "stopped": "stopped",
    "failed": "failed",
}
SAMPLES, SAMPLE = "samples.jsonl", "sample.txt"

Points = list[tuple[int, float]]


@dataclass(frozen=True)
class Record:
    """The contents of a run folder; fields of missing or broken files are empty.

    Attributes
    ----------
    reports
        The lines of metrics.jsonl, in their order.
    config
        The tables of config.toml.
    notes
        run.json: the commands, the machine, memory, time by op, how it ended.
    samples
        (iteration, text) of samples.jsonl.
    sample
        sample.txt.
    """

    path: Path
    reports: tuple[Mapping[str, Any], ...]
    config: Mapping[str, Any]
    notes: Mapping[str, Any]
    samples: tuple[tuple[int, str], ...]
    sample: str

    @classmethod
    def read(cls, path: str | PathLike[str]) -> "Record":
        """Read a folder. Raises DataError if there are no reports."""
        folder = Path(path)
        reports = [
            line
            for line in lines_of(read_bytes(folder / METRICS))
            if _is_step(line.get("iteration"))
        ]
        if not reports:
            raise DataError(f"{folder / METRICS}: expected reports of a run, one on each line")
        samples = [
            (line["iteration"], line["text"])
            for line in lines_of(_bytes(folder / SAMPLES))
            if _is_step(line.get("iteration")) and isinstance(line.get("text"), str)
        ]
        notes = next(iter(lines_of(_bytes(folder / NOTES).replace(b"\n", b" "))), {})
        return cls(
            folder,
            tuple(reports),
            _tables(_bytes(folder / CONFIG)),
            notes,
            tuple(samples),
            _bytes(folder / SAMPLE).decode(errors="replace"),
        )

    def numbers(self, name: str) -> Points:
        """Return (iteration, value) of a field wherever it is a finite number.

        A name that begins with "_" matches the end of a field: the fields of speed begin with the
        unit, as in tokens_per_second.
        """
        points = []
        for report in self.reports:
            for key, value in report.items():
                alike = key.endswith(name) if name.startswith("_") else key == name
                if alike and _is_number(value):
                    points.append((report["iteration"], float(value)))
        return points

    def names(self) -> list[str]:
        """Return the fields that have numbers, in the order of their first report."""
        fields: dict[str, None] = {}
        for report in self.reports:
            fields |= {key: None for key, value in report.items() if _is_number(value)}
        return list(fields)

    def table(self, name: str) -> dict[str, Any]:
        """Return a table of config.toml, or an object of run.json; without it, an empty dict."""
        entries = self.config.get(name, self.notes.get(name))
        return dict(entries) if isinstance(entries, Mapping) else {}

    @property
    def recipe(self) -> str | None:
        """The recipe of ``toynn train``; None for a script's run."""
        name = self.table("run").get("recipe")
        return name if isinstance(name, str) else None

    @property
    def steps(self) -> int:
        """Number of steps taken."""
        return max(int(report["iteration"]) for report in self.reports)

    @property
    def planned(self) -> int | None:
        """Number of steps planned; None if unknown."""
        tables = (self.table("run"), self.table("train"), self.notes)
        counts = (table["steps"] for table in tables if isinstance(table.get("steps"), int))
        return next(counts, None)

    @property
    def seconds(self) -> float | None:
        """Seconds until the last report."""
        times = self.numbers("time")
        return times[-1][1] if times else None

    @property
    def state(self) -> tuple[bool, str]:
        """Whether all is well, and how the run ended, as far as its folder tells."""
        state = str(self.notes.get("state"))
        if state not in STATES:  # the run was killed, or is older than the notes
            is_whole = self.planned is not None and self.steps >= self.planned
            return (True, "done") if is_whole else (False, "running, or stopped before its end")
        why = self.notes.get("why")
        return state in ("done", "early"), STATES[state] + (f": {why}" if why else "")

    @property
    def metric(self) -> str:
        """The metric that chose the best weights; "loss" if unknown."""
        by = self.table("best_by")
        name = by.get("metric", by.get("measure"))  # "measure" in older runs
        return name if isinstance(name, str) else "loss"

    def best(self) -> tuple[int, float] | None:
        """Return (iteration, validation loss) of the best weights, which ``metric`` chose."""
        losses, by = dict(self.numbers("val_loss")), self.table("best_by")
        step, figure = by.get("step"), by.get("figure")
        if not isinstance(step, int) or step not in losses:  # the run has not ended
            points = self.numbers(figure) if isinstance(figure, str) else []
            sign = -1 if points and by.get("more") is True else 1
            points = [point for point in points or losses.items() if point[0] in losses]
            # as the training loop compares them
            ranked = [(sign * figure, losses[at], -at, at) for at, figure in points]
            step = min(ranked, default=(None,))[-1]
        return None if step is None else (step, losses[step])


def lines_of(content: bytes) -> list[dict[str, Any]]:
    """Return the objects among lines of JSON; other lines are left out."""
    objects = []
    for line in content.splitlines():
        try:
            value = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(value, dict):
            objects.append(value)
    return objects


def _bytes(path: Path) -> bytes:
    """Return the contents of a file; b"" if it cannot be read."""
    try:
        return read_bytes(path)
    except DataError:
        return b""


def _tables(content: bytes) -> dict[str, Any]:
    import tomllib

    try:
        return tomllib.loads(content.decode())
    except (ValueError, RecursionError):
        return {}


def _is_step(value: Any) -> bool:
    return isinstance(value, int) and _is_number(value)


def _is_number(value: Any) -> bool:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return number and (value == 0 or LEAST <= abs(value) <= MOST)
