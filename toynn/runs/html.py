"""HTML from plain texts, escaped.

    tag("td", name, class_="name")      <td class="name">&lt;script&gt;</td>

Only what ``tag`` returned is inserted unchanged. Any other text is escaped. Its control characters
are replaced, including characters that reverse the order of letters.
"""

from collections.abc import Sequence
from html import escape
from typing import Any

from toynn.system.printing import harmless

EMPTY = frozenset(["meta", "img", "line", "rect", "circle", "polyline", "br"])


class Markup(str):
    """Finished HTML, which is not escaped again."""


def text(value: object) -> Markup:
    """Return a text as HTML that shows it."""
    if isinstance(value, Markup):
        return value
    plain = str(value).encode("utf-8", "backslashreplace").decode()
    return Markup(escape(harmless(plain.replace("\r\n", "\n"))))


def join(*parts: object) -> Markup:
    """Return texts and HTML joined; None is left out."""
    return Markup("".join(text(part) for part in parts if part is not None))


def tag(name: str, /, *inside: object, **attributes: Any) -> Markup:
    """Return an element. In attribute names a last underscore is removed, others become "-"."""
    said = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{text(value)}"'
        for key, value in attributes.items()
        if value is not None
    )
    if name in EMPTY:
        return Markup(f"<{name}{said}>" if name in ("meta", "img", "br") else f"<{name}{said}/>")
    return Markup(f"<{name}{said}>{join(*inside)}</{name}>")


def table(head: tuple[str, ...], rows: Sequence[tuple[object, ...]], words: int = 1) -> Markup:
    """Return a table; the first ``words`` columns hold words, the others figures."""

    def cells(name: str, row: tuple[object, ...]) -> list[Markup]:
        kinds = ["word" if k < words else "figure" for k in range(len(row))]
        return [tag(name, cell, class_=kind) for cell, kind in zip(row, kinds, strict=True)]

    top = tag("thead", tag("tr", *cells("th", head))) if head else None
    body = tag("tbody", *(tag("tr", *cells("td", row)) for row in rows))
    return tag("div", tag("table", top, body), class_="wide")
