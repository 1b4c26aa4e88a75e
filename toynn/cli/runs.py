"""``toynn runs`` and ``toynn plot``: a table of run folders, and their curves."""

import json
import math
import tomllib
from argparse import Namespace
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from toynn.cli._text import harmless
from toynn.errors import ConfigError, DataError
from toynn.reading import read_bytes
from toynn.train.metrics import save_figure
from toynn.train.progress import duration

__all__ = ["add_parsers"]

METRICS, CONFIG = "metrics.jsonl", "config.toml"
SORTS = ("name", "recipe", "steps", "train", "val", "time")
#: What can be drawn, by the name of its field; of speed the unit differs.
CURVES = {
    "loss": "train_loss",
    "val": "val_loss",
    "lr": "learning_rate",
    "norm": "grad_norm",
    "speed": "_per_second",
    "accuracy": "val_accuracy",
    "margins": "rewards/margins",
}
WIDTH, HEIGHT = 72, 18  # characters of a chart in the terminal
MARKS = "*o+x#@%&"


def add_parsers(commands: Any) -> None:
    """Add both commands to the parser's commands."""
    help_ = "a table of run folders"
    parser = commands.add_parser("runs", help=help_, description=help_, allow_abbrev=False)
    where = "folders of runs, or folders that have some in them (default runs)"
    parser.add_argument("folders", nargs="*", type=Path, metavar="FOLDER", help=where)
    parser.add_argument("--sort", choices=SORTS, default="name", help="by what (default name)")
    parser.add_argument("--json", action="store_true", help="print a line of JSON for each")
    parser.set_defaults(run=run_runs)

    help_ = "the curves of runs, in one picture"
    parser = commands.add_parser("plot", help=help_, description=help_, allow_abbrev=False)
    parser.add_argument("folders", nargs="+", type=Path, metavar="RUN", help="folders of runs")
    what = f"what is drawn: {', '.join(CURVES)} (default: loss and val)"
    parser.add_argument("--what", choices=CURVES, nargs="+", default=["loss", "val"], help=what)
    out = "write a picture, .png, .svg or .pdf; without it, a chart goes to the terminal"
    parser.add_argument("--out", type=Path, metavar="FILE", help=out)
    parser.set_defaults(run=run_plot)


def run_runs(arguments: Namespace) -> int:
    """Print a row for each run."""
    rows = [_row(folder) for folder in _found(arguments.folders or [Path("runs")])]
    if not rows:
        given = ", ".join(map(str, arguments.folders or ["runs"]))
        raise DataError(f"{given}: no folder of a run in it: none has {METRICS}")
    rows.sort(key=lambda row: _order(row[arguments.sort]))
    if arguments.json:
        for row in rows:
            print(json.dumps(row))
        return 0
    cells = [("run", "recipe", "steps", "train loss", "val loss", "time")]
    cells += [
        (
            str(row["name"]),
            str(row["recipe"]),
            f"{row['steps']}/{row['of']}" if row["of"] else str(row["steps"]),
            _shown(row["train"]),
            _shown(row["val"]),
            duration(row["time"] or 0.0),
        )
        for row in rows
    ]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    for line in cells:
        left = "  ".join(cell.ljust(width) for cell, width in zip(line[:2], widths, strict=False))
        right = "  ".join(
            cell.rjust(width) for cell, width in zip(line[2:], widths[2:], strict=True)
        )
        print(harmless(f"{left}  {right}", ""))
    return 0


def _shown(value: float | None) -> str:
    return "-" if value is None else f"{value:.4f}"


def _order(value: Any) -> tuple[bool, Any]:
    return value is None, value


def _found(folders: Sequence[Path]) -> Iterator[Path]:
    """Yield the folders of runs among folders, and in them. Raises DataError for what is none."""
    for folder in folders:
        if not folder.is_dir():
            raise DataError(f"{folder}: expected a folder of runs; there is none")
        if (folder / METRICS).is_file():
            yield folder
            continue
        yield from sorted(each for each in folder.iterdir() if (each / METRICS).is_file())


def _reports(folder: Path) -> list[dict[str, Any]]:
    """Return the reports of a run; a line that is none, as of a run that was killed, is left out.

    Raises DataError where there are none.
    """
    found = []
    for line in read_bytes(folder / METRICS).splitlines():
        try:
            report = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(report, dict) and isinstance(report.get("iteration"), int):
            found.append(report)
    if not found:
        raise DataError(f"{folder / METRICS}: expected reports of a run, one on each line")
    return found


def _numbers(reports: Sequence[dict[str, Any]], name: str) -> list[tuple[int, float]]:
    """Return (iteration, value) of a field, where it is a finite number."""
    points = []
    for report in reports:
        for key, value in report.items():
            alike = key.endswith(name) if name.startswith("_") else key == name
            if alike and isinstance(value, int | float) and math.isfinite(value):
                points.append((report["iteration"], float(value)))
    return points


def _row(folder: Path) -> dict[str, Any]:
    """Return what the table says of a run."""
    reports = _reports(folder)
    try:
        tables = tomllib.loads(read_bytes(folder / CONFIG).decode())
        recipe, of = tables["run"]["recipe"], tables["train"]["steps"]
    except (DataError, ValueError, LookupError, TypeError):
        recipe, of = "?", None
    train, val = _numbers(reports, "train_loss"), _numbers(reports, "val_loss")
    seconds = _numbers(reports, "time")
    return {
        "name": str(folder),
        "recipe": recipe,
        "steps": max(report["iteration"] for report in reports),
        "of": of,
        "train": train[-1][1] if train else None,
        "val": min((value for _, value in val), default=None),
        "time": seconds[-1][1] if seconds else None,
    }


def run_plot(arguments: Namespace) -> int:
    """Draw the curves: into a file, or into the terminal."""
    curves = {}
    for folder in arguments.folders:
        reports = _reports(folder)
        for what in arguments.what:
            if points := _numbers(reports, CURVES[what]):
                curves[f"{folder.name or folder} {what}"] = points
    if not curves:
        raise DataError(f"no run here has {' or '.join(arguments.what)} in its {METRICS}")
    if arguments.out is None:
        print(harmless(chart(curves)))
        return 0
    _picture(curves, arguments.out)
    print(f"{arguments.out}: {len(curves)} curves")
    return 0


def _picture(curves: dict[str, list[tuple[int, float]]], out: Path) -> None:
    if out.suffix not in (".png", ".svg", ".pdf"):
        raise ConfigError(f"--out {out}: expected a .png, .svg or .pdf file")
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ConfigError(
            "--out: a picture needs matplotlib, which is not installed: pip install matplotlib; "
            "without --out, a chart goes to the terminal"
        ) from error
    figure = Figure(figsize=(8, 5), layout="constrained")
    axes = figure.add_subplot(xlabel="iteration")
    for name, points in curves.items():
        axes.plot([x for x, _ in points], [y for _, y in points], label=name)
    axes.legend()
    save_figure(figure, out)


def chart(curves: dict[str, list[tuple[int, float]]], width: int = WIDTH) -> str:
    """Return curves as lines of text: a mark a curve, between the least and the greatest value."""
    points = [point for curve in curves.values() for point in curve]
    left, right = min(x for x, _ in points), max(x for x, _ in points)
    low, high = min(y for _, y in points), max(y for _, y in points)
    room = width - 11
    rows = [[" "] * room for _ in range(HEIGHT)]
    for mark, curve in zip(MARKS * len(curves), curves.values(), strict=False):
        for x, y in _between(curve):
            column = round((x - left) / max(right - left, 1) * (room - 1))
            line = round((high - y) / max(high - low, 1e-30) * (HEIGHT - 1))
            rows[line][column] = mark
    lines = []
    for index, row in enumerate(rows):
        value = high - (high - low) * index / (HEIGHT - 1)
        label = f"{value:9.4g}" if index % 4 == 0 or index == HEIGHT - 1 else " " * 9
        lines.append(f"{label} |{''.join(row)}".rstrip())
    lines.append(" " * 10 + "+" + "-" * room)
    lines.append(" " * 11 + f"{left:<{room // 2}}{right:>{room - room // 2}}")
    lines += [
        f"{'':11}{mark} {name}" for mark, name in zip(MARKS * len(curves), curves, strict=False)
    ]
    return "\n".join(lines)


def _between(curve: Sequence[tuple[int, float]]) -> Iterator[tuple[float, float]]:
    """Yield points, and some on the straight lines between them."""
    for (x, y), (u, v) in pairwise(curve):
        for k in range(WIDTH):
            yield x + (u - x) * k / WIDTH, y + (v - y) * k / WIDTH
    yield curve[-1]
