"""``toynn runs``, ``plot`` and ``report``: a table of run folders, their curves, their pages."""

import json
import sys
from argparse import Namespace
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import fields
from itertools import cycle
from pathlib import Path
from typing import Any

from toynn.cli._commands import add_command
from toynn.errors import ConfigError, DataError
from toynn.jobs import peers
from toynn.options import typed_path
from toynn.runs import Record, write_report
from toynn.runs.record import METRICS
from toynn.runs.series import PLAIN, series
from toynn.system.printing import columns, duration, harmless
from toynn.train.metrics import Report

SORTS = ("name", "recipe", "steps", "train", "val", "time")
#: Short names of what a run of toynn may log; a script's run may log others.
FIELDS = [each.name for each in fields(Report) if each.name not in ("iteration", "figures")]
NAMES = tuple(dict.fromkeys(series(name).short for name in (*FIELDS, *PLAIN)))
WIDTH, HEIGHT = 72, 20  # most characters of a chart in the terminal
LEAST = 24  # least width of a chart, and of a column of names; a cut name keeps its end
#: Columns that a table drops, in this order, if it is wider than the terminal.
DROPPED = ("recipe", "time", "best at", "train loss")
MARKS = "*o+x#@%&"

Curves = dict[str, list[tuple[int, float]]]


def add_parser(commands: Any) -> None:
    """Add the commands to the parser's commands."""
    parser = add_command(commands, "runs")
    where = "run folders, or folders that contain some (default runs)"
    parser.add_argument("folders", nargs="*", type=typed_path, metavar="FOLDER", help=where)
    parser.add_argument("--sort", choices=SORTS, default="name", help="sort by this (default name)")
    parser.add_argument("--json", action="store_true", help="print a line of JSON for each run")
    parser.set_defaults(run=run_runs)

    parser = add_command(commands, "plot")
    parser.add_argument("folders", nargs="+", type=typed_path, metavar="RUN", help="run folders")
    what = (
        f"curves to plot: {', '.join(NAMES)}, or any other figure of metrics.jsonl by its name "
        "there (default: loss and val)"
    )
    curves: Any = parser.add_argument(
        "--what", nargs="+", default=["loss", "val"], metavar="NAME", help=what
    )
    curves.words = NAMES
    parser.set_defaults(run=run_plot)

    parser = add_command(commands, "report")
    parser.add_argument("folders", nargs="+", type=typed_path, metavar="RUN", help="run folders")
    parser.set_defaults(run=run_report, saves=True)


def run_runs(arguments: Namespace) -> int:
    """Print a row for each run."""
    rows = [_row(folder) for folder in _run_folders(arguments.folders or [Path("runs")])]
    if not rows:
        folders = ", ".join(map(str, arguments.folders or ["runs"]))
        raise DataError(f"{folders}: expected run folders, which have {METRICS}; got none")
    rows.sort(key=lambda row: _order(row[arguments.sort]))
    if arguments.json:
        for row in rows:
            print(json.dumps(row))
        return 0
    cells = [("run", "recipe", "steps", "train loss", "val loss", "best at", "time")]
    cells += [
        (
            str(row["name"]),
            str(row["recipe"]),
            f"{row['steps']}/{row['of']}" if row["of"] else str(row["steps"]),
            _shown(row["train"]),
            _shown(row["val"]),
            _best_at(row),
            duration(row["time"] or 0.0),
        )
        for row in rows
    ]
    for line in _fitted(cells, columns(sys.stdout)):
        print(harmless(line, ""))
    return 0


def _fitted(cells: Sequence[tuple[str, ...]], room: int) -> Iterator[str]:
    """Yield the lines of a table, at most ``room`` characters wide; 0 sets no limit."""
    names, *rest = zip(*cells, strict=True)
    longest = max(map(len, names))
    for dropped in DROPPED:
        if not room or min(longest, LEAST) + _width(rest) <= room:
            break
        rest = [column for column in rest if column[0] != dropped]
    if room:
        longest = min(longest, max(LEAST, room - _width(rest)))
    names = tuple(n if len(n) <= longest else f"...{n[3 - longest :]}" for n in names)
    for name, *line in zip(names, *rest, strict=True):
        words = [
            cell.ljust(_wide(column)) if column[0] == "recipe" else cell.rjust(_wide(column))
            for cell, column in zip(line, rest, strict=True)
        ]
        yield "  ".join([name.ljust(longest), *words])


def _width(cells: Sequence[tuple[str, ...]]) -> int:
    """Return the total width of columns, with two spaces before each."""
    return sum(2 + _wide(column) for column in cells)


def _wide(column: tuple[str, ...]) -> int:
    return max(map(len, column))


def _shown(value: float | None) -> str:
    return "-" if value is None else f"{value:.4f}"


def _best_at(row: dict[str, Any]) -> str:
    """Return the step of the best weights, and the metric that chose them, if not the loss."""
    if row["best_step"] is None:
        return "-"
    by = "" if row["metric"] == "loss" else f" by {row['metric']}"
    return f"{row['best_step']}{by}"


def _order(value: Any) -> tuple[bool, Any]:
    return value is None, value


def _run_folders(folders: Sequence[Path]) -> Iterator[Path]:
    """Yield run folders: the given ones and those inside. Raises DataError for a missing folder."""
    for folder in folders:
        if not folder.is_dir():
            raise DataError(f"{folder}: expected a folder of runs; no such folder exists")
        if (folder / METRICS).is_file():
            yield folder
            continue
        yield from sorted(each for each in folder.iterdir() if (each / METRICS).is_file())


def _row(folder: Path) -> dict[str, Any]:
    """Return a run's row of the table."""
    record = Record.read(folder)
    train, best = record.numbers("train_loss"), record.best()
    return {
        "name": str(folder),
        "recipe": record.recipe or "?",
        "steps": record.steps,
        "of": record.planned,
        "train": train[-1][1] if train else None,
        "val": best[1] if best else None,
        "best_step": best[0] if best else None,
        "metric": record.metric,
        "time": record.seconds,
    }


def _check_runs(folders: Sequence[Path]) -> None:
    """Raise DataError for anything but the folder of a run."""
    for folder in folders:
        if not (folder / METRICS).is_file():
            runs = sorted(folder.glob(f"*/{METRICS}"))
            inside = f", such as {runs[0].parent}" if runs else ""
            raise DataError(f"{folder}: expected the folder of a run, with {METRICS}{inside}")


def run_report(arguments: Namespace) -> int:
    """Write the pages; print where they are."""
    _check_runs(arguments.folders)
    for folder in arguments.folders:
        print(harmless(str(write_report(folder)), ""))
    return 0


def run_plot(arguments: Namespace) -> int:
    """Draw the curves, those of each quantity in a chart of their own."""
    panels: dict[str, Curves] = {}
    _check_runs(arguments.folders)
    records = [Record.read(folder) for folder in arguments.folders]
    logged = dict.fromkeys(name for record in records for name in record.names())
    for record in records:
        for what in arguments.what:
            for each in map(series, record.names()):
                if not each.called(what):
                    continue
                both = each.held_out and each.family in logged and what not in (each.field, "val")
                name = f"{record.path.name or record.path} {what}{' val' if both else ''}"
                panels.setdefault(each.plain, {})[name] = record.numbers(each.field)
    unknown = [
        what
        for what in arguments.what
        if what not in NAMES and not any(series(name).called(what) for name in logged)
    ]
    if unknown or not panels:
        raise _unlogged(unknown or arguments.what, logged)
    width = max(LEAST, min(WIDTH, columns(sys.stdout) or WIDTH))
    charts = [_chart(each, width, is_coloured=sys.stdout.isatty()) for each in panels.values()]
    print("\n\n".join(charts))
    return 0


def _unlogged(whats: Sequence[str], logged: Iterable[str]) -> DataError:
    """Return the error for names that no run here has logged."""
    names = list(dict.fromkeys(series(name).short for name in logged if name != "iteration"))
    near = peers.meant(whats[0], names)
    said = f"no run here has {' or '.join(whats)} in its {METRICS}"
    return DataError(
        f"{said}{f' (did you mean {near}?)' if near else ''}; there are {', '.join(names)}"
    )


def _chart(curves: Curves, width: int, *, is_coloured: bool) -> str:
    """Return curves as plotext draws them: each in a colour, or with a mark of its own."""
    try:
        from plotext import figure, uncolorize
    except ImportError as error:  # not installed; or plotext before 6, which has no figure
        raise ConfigError(
            'a chart in the terminal needs plotext 6, which is not installed: pip install "'
            "plotext>=6\"; report.html in a run's folder shows its curves without it"
        ) from error
    figure.clear()
    figure.theme("simple")
    figure.plot_size(width, HEIGHT)
    for mark, (name, points) in zip(cycle(MARKS), curves.items(), strict=False):
        xs, ys = [x for x, _ in points], [y for _, y in points]
        line = figure.signal(xs, ys, marker=None if is_coloured else mark)
        line.label(harmless(name, ""))
        line.lines()
        figure.draw(line)
    drawn = str(figure.build()).rstrip()
    return drawn if is_coloured else str(uncolorize(drawn))
