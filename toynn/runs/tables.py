"""The tables of report.html: the run and its machine, memory, time by op, classes and pictures."""

from collections.abc import Mapping
from typing import Any

from toynn.runs.html import Markup, join, table, tag
from toynn.runs.record import Record
from toynn.system.printing import size

CLASSES = 32  # most classes of a matrix; with more classes, a list of the commonest mistakes
MISTAKES = 20
OPS = 24
MEMORY = {
    "weights": "weights",
    "moments": "moments of AdamW",
    "gradients": "gradients",
    "activations": "activations, inputs, scratch",
    "mapped": "mapped from the model's file",
}


def _pairs(title: str, entries: Mapping[str, Any]) -> Markup | None:
    """Return a card of names and values, if there are any."""
    rows: list[tuple[object, ...]] = [(key, _shown(value)) for key, value in entries.items()]
    if not rows:
        return None
    return tag("div", tag("h3", title), table((), rows, words=2), class_="card")


def _shown(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(map(str, value))
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:,}" if isinstance(value, int) else str(value)


def what_was_run(record: Record) -> Markup:
    """Return commands, data, model, base, flags and machine."""
    parts: list[Markup | None] = []
    for session in record.notes.get("sessions") or ():
        begun = f"{session['started']}, from step {session['from']:,}"
        command = session.get("command") or "a script, by toynn.train.Trainer"
        parts += [tag("p", begun, class_="soft"), tag("pre", command)]
    remarks = [tag("p", line, class_="soft") for line in record.notes.get("said") or ()]
    data = dict(record.table("data"))
    classes = data.pop("classes", None)
    if isinstance(classes, list):
        data["classes"] = f"{len(classes)}: {', '.join(map(str, classes[:CLASSES]))}"
    flags = {f"--{key.replace('_', '-')}": value for key, value in record.table("train").items()}
    machine = record.table("machine")
    if version := record.table("run").get("version"):
        machine = {"toynn": version, **machine}
    cards = {
        "Data": data,
        "Started from, by SHA-256": record.table("sources"),
        "Machine": machine,
        "Model": record.table("model"),
        "Flags": flags,
    }
    filled = (_pairs(title, entries) for title, entries in cards.items())
    return join(*parts, *remarks, tag("div", *filled, class_="cards"))


def memory(record: Record) -> Markup | None:
    """Return bytes by purpose, as bars."""
    sizes = record.table("memory")
    counts = {MEMORY[key]: sizes[key] for key in MEMORY if sizes.get(key)}
    if not counts:
        return None
    largest = max(counts.values())
    rows: list[tuple[object, ...]] = [
        (what, _bar(count / largest), size(count)) for what, count in counts.items()
    ]
    note = "Mapped bytes are read from the file as needed; they are not memory of the process."
    more = tag("p", note, class_="soft") if sizes.get("mapped") else None
    return join(table((), rows, words=2), more)


def profile(record: Record) -> Markup | None:
    """Return the ops that took longest."""
    rows = record.notes.get("profile") or ()
    if not rows:
        return None
    cells: list[tuple[object, ...]] = [
        (
            row["op"],
            _bar(row["share"] / rows[0]["share"] if rows[0]["share"] else 0),
            f"{row['share']:.1%}",
            f"{row['ms']:,.1f}",
            f"{row['calls']:,}",
        )
        for row in rows[:OPS]
    ]
    if left := rows[OPS:]:
        share, ms = sum(row["share"] for row in left), sum(row["ms"] for row in left)
        cells.append((f"{len(left)} others", "", f"{share:.1%}", f"{ms:,.1f}", ""))
    note = "Time by the clock in the ops of training steps, since the run was begun or resumed."
    return join(
        tag("p", note, class_="soft"),
        table(("op", "", "share", "ms", "calls"), cells, words=2),
    )


def _bar(share: float) -> Markup:
    return tag("div", tag("span", class_="bar", style=f"width:{100 * share:.1f}%"), class_="room")


def confusion(record: Record) -> Markup | None:
    """Return the confusion matrix of held-out pictures; for many classes, a list of mistakes."""
    matrix = record.table("confusion")
    if not matrix:
        return None
    names, counts = matrix["classes"], matrix["counts"]
    if len(names) > CLASSES:
        wrong = sorted(
            (
                (-count, i, j)
                for i, row in enumerate(counts)
                for j, count in enumerate(row)
                if i != j and count
            )
        )
        rows: list[tuple[object, ...]] = [
            (names[i], names[j], -count) for count, i, j in wrong[:MISTAKES]
        ]
        return table(("class", "predicted", "pictures"), rows, words=2)
    head = tag("tr", tag("th", ""), *(tag("th", name) for name in names))
    lines = [head]
    for k, (name, row) in enumerate(zip(names, counts, strict=True)):
        whole = max(sum(row), 1)
        cells = [_counted(count, count / whole, j == k) for j, count in enumerate(row)]
        lines.append(tag("tr", tag("th", name), *cells))
    note = tag("p", "A row for each class, a column for each predicted class.", class_="soft")
    return join(note, tag("div", tag("table", *lines, class_="matrix"), class_="wide"))


def _counted(count: int, share: float, right: bool) -> Markup:
    """Return a cell whose colour is stronger for a larger share of its row."""
    colour = "--good" if right else "--bad"
    style = f"background:color-mix(in srgb, var({colour}) {60 * share:.0f}%, transparent)"
    return tag("td", count or "", style=style if count else None)


def pictures(record: Record) -> Markup | None:
    """Return some of the held-out pictures, with their class and the predicted one."""
    shown = []
    for picture in record.notes.get("pictures") or ():
        right = picture["class"] == picture["taken_for"]
        said = "" if right else f", predicted {picture['taken_for']}"
        source = f"data:image/png;base64,{picture['png']}"
        image = tag("img", src=source, alt=picture["class"])
        kind = "good" if right else "bad"
        shown.append(tag("div", image, tag("span", picture["class"] + said, class_=kind)))
    note = "The first mistakes, if there are any, and then some that are right."
    lead = tag("p", note, class_="soft")
    return join(lead, tag("div", *shown, class_="pictures")) if shown else None
