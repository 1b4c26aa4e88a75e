"""The page: data, a style sheet and a script in one file.

Texts from data files, such as names of weights, cannot become code. The data are JSON, by gzip, in
base64; the script inserts texts as text, and the page's policy allows only this script, by its
hash.
"""

import base64
import gzip
import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from html import escape
from os import PathLike
from pathlib import Path
from typing import Any

from toynn.explorer.values import followed, recorded
from toynn.formats.files import write_atomically
from toynn.graph.described import described, numbered, sources

FOLDER = Path(__file__).parent
#: Fields of nodes and tensors that the memory view needs, for tapes that are only compared.
NODE = ("op", "phase", "section")
TENSOR = ("name", "bytes", "role", "buffer", "offset", "first", "last", "writers")
HEIGHT = 720  # pixels, in a notebook

TEMPLATE = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>{title}</title>
<style>{style}</style>
</head>
<body>
<noscript>This page draws a training step of toynn with a script, which your browser does not run.
The step as text: toynn tape, without --html.</noscript>
<script type="text/plain" id="data">{data}</script>
<script type="module">{script}</script>
</body>
</html>
"""


@dataclass(frozen=True)
class Page:
    """An HTML page; a notebook shows it."""

    html: str

    def write(self, path: str | PathLike[str]) -> Path:
        """Write the page to a file. Raises CheckpointError if it cannot be written."""
        write_atomically(Path(path), self.html.encode())
        return Path(path)

    def _repr_html_(self) -> str:
        style = f"width: 100%; height: {HEIGHT}px; border: 0"
        return (
            f'<iframe title="toynn explorer" sandbox="allow-scripts" style="{style}" '
            f'srcdoc="{escape(self.html)}"></iframe>'
        )


def write(recorder: Any, path: str | PathLike[str], **more: Any) -> Path:
    """Write the page of a session, recipe or engine; ``more`` are arguments of ``page``."""
    return page(recorder, **more).write(path)


def page(
    recorder: Any,
    *,
    title: str = "a training step",
    values: bool = False,
    follow: str | None = None,
    seconds: Sequence[float] | None = None,
    bounds: Sequence[tuple[float, str]] | None = None,
    beside: Mapping[str, Any] | None = None,
    text: str | None = None,
    lessons: Mapping[str, Sequence[str]] | None = None,
    docs: str | None = None,
) -> Page:
    """Return the page of the training step of a session, recipe or engine.

    Parameters
    ----------
    values
        Run the step again on its current inputs, and show the numbers before and after each call.
        Weights and moments are restored.
    follow
        A number to show first: "blk.0.attn_q.weight[3,5]".
    seconds, bounds
        For each node its measured seconds; and a pair of its least seconds and what limits it, from
        toynn.testing.roofline.
    beside
        Other sessions, recipes or engines by name, to compare the memory with. They need only be
        recorded.
    text
        The text that the inputs are, to be shown with ``values``.
    lessons
        For the path of a kernel's file, where more is to be read: "docs/kernels.md#2-norms".
    docs
        The address of the site that docs/ becomes; the page links to it.

    Raises ConfigError for ``values`` of too large a step, and if the number to follow does not
    exist. Raises LifecycleError for a closed session, and for ``values`` of a step that cannot run.
    """
    session = _session_of(recorder)
    tape = session.tape
    numbers = numbered(tape)
    data: dict[str, Any] = {"title": title, "tapes": [_told(session) | {"name": "as it is"}]}
    data["tapes"] += [_slim(_told(_session_of(o))) | {"name": n} for n, o in (beside or {}).items()]
    data |= sources(tape)
    if values or follow is not None:
        data["values"] = recorded(session, numbers) | ({} if text is None else {"text": text})
    if follow is not None:
        data["follow"] = followed(session, follow, numbers)
    if seconds is not None:
        data["seconds"] = list(seconds)
    if bounds is not None:
        data["bounds"] = [list(bound) for bound in bounds]
    data |= {"lessons": dict(lessons or {}), "docs": docs}
    style, script = (
        (FOLDER / f"explorer.{kind}").read_text(encoding="utf-8") for kind in ("css", "js")
    )
    policy = (
        f"default-src 'none'; script-src '{_hash(script)}'; style-src '{_hash(style)}'; "
        "base-uri 'none'; form-action 'none'"
    )
    return Page(
        TEMPLATE.format(
            policy=escape(policy),
            title=escape(f"{title}: toynn"),
            style=style,
            data=_embedded(data),
            script=script,
        )
    )


def _session_of(recorder: Any) -> Any:
    """Return the session of a recipe or an engine, or itself."""
    return getattr(getattr(recorder, "engine", recorder), "session", recorder)


def _told(session: Any) -> dict[str, Any]:
    """Return a session's tape as data, with the tensors' places and the session's memory."""
    memory = session.memory()
    tape = described(session.tape, session.places())
    return tape | {"memory": asdict(memory) | {"peak": memory.peak}}


def _slim(tape: dict[str, Any]) -> dict[str, Any]:
    """Return the parts of a tape that the memory view needs: its nodes, and the arena's tensors."""
    boxes = [t for t in tape["tensors"] if "base" not in t and t.get("buffer") == "arena"]
    cut = {
        "nodes": [{key: node[key] for key in NODE} for node in tape["nodes"]],
        "tensors": [{key: tensor[key] for key in TENSOR} for tensor in boxes],
    }
    return {**tape, **cut, "flops": sum(node["flops"] for node in tape["nodes"])}


def _embedded(data: Any) -> str:
    """Return JSON, by gzip, in base64: the letters of no markup."""
    text = json.dumps(data, separators=(",", ":"), allow_nan=False)
    return base64.b64encode(gzip.compress(text.encode(), mtime=0)).decode()


def _hash(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"
