"""report.html: a run's options, curves, samples and costs, and commands for the next steps.

It is one page that opens from disk. Its style and pictures are inside, it has no scripts, and its
policy forbids it to load anything.
"""

from collections.abc import Iterator
from os import PathLike
from pathlib import Path
from typing import Any

from toynn.errors import DataError
from toynn.formats.files import write_atomically
from toynn.runs import tables
from toynn.runs.chart import chart, short
from toynn.runs.commands import commands
from toynn.runs.html import Markup, join, table, tag
from toynn.runs.record import NOTES, Record
from toynn.runs.series import PER_SECOND, Series, series
from toynn.runs.style import STYLE
from toynn.system.printing import duration, size

REPORT = "report.html"
POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
MIXED = (
    "The training loss is measured on mixed pictures with mixed labels (mixup, label smoothing), "
    "where no model can reach 0. The validation loss is measured on plain pictures. So it stays "
    "below the training loss, even if nothing is wrong."
)
#: The first and the last charts; and labels of curves that have no training or validation part.
FIRST, LAST = ("train_loss",), ("learning_rate", "grad_norm", PER_SECOND)
LABELS = {
    "learning_rate": "of the step",
    "grad_norm": "before clipping",
    PER_SECOND: "while training",
}
DROPPED = "The training loss is measured with dropout, the validation loss without."


def write_report(folder: str | PathLike[str]) -> Path:
    """Write the page of a run into its folder; return its path.

    Raises DataError for a folder without a run, CheckpointError if it cannot be written.
    """
    record = Record.read(folder)
    try:
        content = page(record)
    except (TypeError, ValueError, LookupError, AttributeError) as error:
        raise DataError(
            f"{record.path / NOTES}: expected what a run writes there; got something else "
            f"({type(error).__name__}: {error})"
        ) from error
    path = record.path / REPORT
    write_atomically(path, content.encode())
    return path


def page(record: Record) -> str:
    """Return the page. A run.json that no run has written may raise any error."""
    name = record.path.absolute().name or "run"
    sections = [
        ("Curves", _curves(record)),
        ("What it wrote", _written(record)),
        ("Pictures held out", tables.pictures(record)),
        ("Confusion matrix", tables.confusion(record)),
        ("Next steps", _next(record)),
        ("What was run", tables.what_was_run(record)),
        ("Memory", tables.memory(record)),
        ("Time by op", tables.profile(record)),
        ("All reports", _reports(record)),
    ]
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", http_equiv="Content-Security-Policy", content=POLICY),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("title", f"{name}: a run of toynn"),
        tag("style", Markup(STYLE)),
    )
    body = tag(
        "body",
        _top(record, name),
        *(
            tag("section", tag("h2", title), inside, id=title.lower().replace(" ", "-"))
            for title, inside in sections
            if inside
        ),
    )
    return f'<!DOCTYPE html>\n<html lang="en">{head}\n{body}</html>\n'


def _top(record: Record, name: str) -> Markup:
    is_well, state = record.state
    kind = "good" if is_well else "bad"
    what = f"toynn train {record.recipe}" if record.recipe else "a script's run"
    sessions = record.notes.get("sessions") or [{}]
    started = f", begun {sessions[0]['started']}" if "started" in sessions[0] else ""
    of = f" of {record.planned:,}" if record.planned is not None else ""
    begun = tag("p", f"{what}{started}. {record.steps:,}{of} steps. ", class_="soft")
    return join(
        tag("h1", name),
        begun,
        tag("p", tag("span", state, class_=f"state {kind}")),
        tag("div", *_tiles(record), class_="tiles"),
    )


def _tiles(record: Record) -> Iterator[Markup]:
    """Yield the most important figures."""

    def tile(value: str, what: str) -> Markup:
        return tag("div", tag("b", value), tag("span", what), class_="tile")

    if best := record.best():
        by = "" if record.metric == "loss" else f" by {record.metric}"
        yield tile(f"{best[1]:.4f}", f"validation loss, best{by}, at step {best[0]:,}")
    if rewards := record.numbers("val_rewards/mean"):
        step, reward = max(rewards, key=lambda point: point[1])
        yield tile(f"{reward:.4f}", f"reward of held-out prompts, best, at step {step:,}")
    if accuracies := dict(record.numbers("val_accuracy")):
        at = best[0] if best and best[0] in accuracies else max(accuracies)
        yield tile(f"{accuracies[at]:.1%}", f"accuracy, at step {at:,}")
    if losses := record.numbers("train_loss"):
        yield tile(f"{losses[-1][1]:.4f}", "training loss, last")
    if speeds := record.numbers("_per_second"):
        unit = next(key for key in record.names() if key.endswith("_per_second"))
        middle = sorted(value for _, value in speeds)[len(speeds) // 2]
        yield tile(f"{middle:,.0f}", f"{unit.removesuffix('_per_second')}/s, median")
    if record.seconds is not None:
        yield tile(duration(record.seconds), "time")
    if peaks := record.numbers("peak_memory"):
        yield tile(size(max(value for _, value in peaks)), "memory of the process, peak")


def _curves(record: Record) -> Markup | None:
    """Return the charts: losses, other metrics, learning rate, gradient norm, speed."""
    families: dict[str, dict[str, Series]] = {family: {} for family in FIRST}
    for each in map(series, record.names()):
        is_shown = each.held_out or "/" in each.family or each.family in FIRST + LAST
        if is_shown:
            label = "validation" if each.held_out else LABELS.get(each.family, "training")
            families.setdefault(each.family, {})[label] = each
    commonest = record.notes.get("commonest")
    levels = {"train_loss": record.table("baselines")}
    levels["accuracy"] = {} if commonest is None else {"always the commonest class": commonest}
    charts = []
    for family in (*(each for each in families if each not in LAST), *LAST):
        curves = {
            label: points
            for label in sorted(families.get(family, ()))
            if (points := record.numbers(families[family][label].field))
        }
        if curves:
            title = next(iter(families[family].values())).plain
            charts.append(chart(title, curves, levels.get(family)))
    return join(tag("div", *charts, class_="charts"), *_explained(record))


def _explained(record: Record) -> Iterator[Markup]:
    train = record.table("train")
    if train.get("mixup") or (train.get("label_smoothing") and "eval_pictures" in train):
        yield tag("p", MIXED, class_="soft")
    if train.get("dropout"):
        yield tag("p", DROPPED, class_="soft")


def _written(record: Record) -> Markup | None:
    """Return prompts with expected texts, samples in the order of steps, and the last sample."""
    parts: list[Markup] = []
    for prompt in record.notes.get("prompts") or ():
        parts.append(tag("h3", prompt["prompt"]))
        rows = [(name, tag("pre", prompt[name])) for name in ("expected", "before", "after")]
        parts.append(table((), rows, words=2))
    beside = [
        tag("div", tag("h3", f"step {step:,}"), tag("pre", written))
        for step, written in record.samples
    ]
    if beside:
        parts.append(tag("div", *beside, class_="charts"))
    if record.sample and "prompts" not in record.notes:
        parts += [tag("h3", "the best weights, at the end"), tag("pre", record.sample)]
    if parts and not record.samples and "sample_every" in record.table("train"):
        hint = (
            "With --sample-every N a run also writes samples while it trains; this page shows them."
        )
        parts.append(tag("p", hint, class_="soft"))
    return join(*parts) if parts else None


def _next(record: Record) -> Markup | None:
    rows = [tag("div", tag("p", what), tag("pre", command)) for what, command in commands(record)]
    return join(*rows) if rows else None


def _reports(record: Record) -> Markup:
    names = record.names()
    rows: list[tuple[object, ...]] = [
        tuple(_cell(report.get(name)) for name in names) for report in record.reports
    ]
    head = tuple(series(name).words for name in names)
    return tag(
        "details", tag("summary", f"{len(rows)} of metrics.jsonl"), table(head, rows, words=0)
    )


def _cell(value: Any) -> str:
    if value is None:
        return ""
    return f"{value:,}" if isinstance(value, int) else short(value)
