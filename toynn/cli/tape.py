"""``toynn tape WHAT``: the training step of a model, as a table, as JSON, or as a page."""

import re
from argparse import SUPPRESS, Namespace
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

from toynn.cli._commands import add_command
from toynn.cli._flags import add, show_first
from toynn.errors import ConfigError
from toynn.jobs.made import OPTIONS, without_file
from toynn.options import names_of, typed_path
from toynn.system.printing import harmless, size

NONE, XOR = "none", "xor"
#: The changes that --compare can make to a step.
VARIANTS = ("checkpointing", "packing", "batch")
#: Options of `toynn train` that change the step, if the recipe has them.
SHAPING: tuple[str, ...] = (
    "batch",
    "seq",
    "d_model",
    "layers",
    "heads",
    "rank",
    "targets",
    "checkpointing",
    "keep_attention",
    "recompute_cheap",
    "activations",
)
SHAPING += ("precision", "threads", "backend")
#: The stops of docs/kernels.md, by their anchors, and the kernels at each.
STOPS = {
    "1-from-text-to-the-first-row-of-floats": (
        "rows/embedding",
        "losses/valid_rows",
        "elements/elementwise",
    ),
    "2-norms": ("norms/layernorm",),
    "3-the-matrix-product": ("gemm/matmul",),
    "4-attention": ("norms/softmax", "attention/attention"),
    "5-activations": ("activations/gelu",),
    "6-the-loss": ("losses/cross_entropy", "losses/chunked_cross_entropy"),
    "8-the-update": ("weights/grad_norm", "weights/adamw"),
}
#: The help of an option whose help differs between recipes.
BATCH = "sequences or pictures per step (a run's own, otherwise 1)"


def add_parser(commands: Any) -> None:
    """Add the command to the parser's commands."""
    parser = add_command(commands, "tape")
    recipes = without_file()
    what = (
        f"{XOR}, a recipe ({', '.join(recipes)}), a model's file or folder (trains adapters), or "
        "a run's folder"
    )
    chosen: Any = parser.add_argument("what", metavar="WHAT", help=what)
    chosen.words = (XOR, *recipes)
    page = "write a page that shows graph, memory and numbers (default: print a table)"
    parser.add_argument("--html", type=typed_path, metavar="FILE", help=page)
    parser.add_argument(
        "--json", type=typed_path, metavar="FILE", help="write the step as JSON, too"
    )
    time = "take steps, and show the time of each call beside its roofline (about 10 s)"
    parser.add_argument("--time", action="store_true", help=time)
    values = "show the numbers before and after each call of a small step"
    parser.add_argument("--values", action="store_true", help=values)
    follow = "follow a weight and its gradient through the step: blk.0.attn_q.weight[3,5]"
    parser.add_argument("--follow", metavar="WEIGHT[I,J]", help=follow)
    docs = "folder or address of the docs' site, to link to (default: build/docs, if built)"
    parser.add_argument("--docs", metavar="WHERE", help=docs)
    compare = (
        f"compare the memory with other ways to record the step, comma-separated: "
        f"{', '.join(VARIANTS)}, or {NONE} (default: all that the recipe has)"
    )
    others: Any = parser.add_argument(
        "--compare", type=names_of(VARIANTS, NONE), metavar="NAMES", help=compare
    )
    others.words = (*VARIANTS, NONE)
    every = (each for known in OPTIONS.values() for each in known.values())
    widest = {each.name: each for each in sorted(every, key=lambda each: len(each.words))}
    for name in SHAPING:
        option = widest[name]
        said = BATCH if name == "batch" else option.help.partition(" (default")[0]
        add(parser, replace(option, help=said, default=None), default=SUPPRESS)
    first = ("what", "html", "json", "time", "values", "follow", "compare")
    show_first(parser, first, "toynn tape xor --html step.html --values")
    parser.set_defaults(run=run, saves="html")


def run(arguments: Namespace) -> int:
    """Write the page, and the JSON, or print the tape."""
    from toynn import explorer
    from toynn.formats.files import write_atomically
    from toynn.jobs.tapes import shown

    if arguments.html is None and (arguments.time or arguments.values or arguments.follow):
        raise ConfigError("--time, --values and --follow are shown on a page: add --html FILE")
    shaping = {name: value for name, value in vars(arguments).items() if name in SHAPING}
    step = _xor() if arguments.what == XOR else shown(arguments.what, shaping)
    values = arguments.values or arguments.follow is not None or arguments.what == XOR
    session, more = None, {}
    if arguments.html is not None and (values or arguments.time):
        session, take = step.ready()
        with explorer.unchanged(session) if values else nullcontext():
            take()  # sets the inputs
            more = _times(session, take) if arguments.time else {}
    else:
        _, session = step.recorded()
    if arguments.json is not None:
        write_atomically(arguments.json, session.tape.to_json().encode())
    if arguments.html is None:
        if arguments.json is None:
            print(harmless(str(session.tape)))
        return 0
    beside = dict(_compared(step, arguments.compare))
    page = explorer.page(
        session,
        title=step.title,
        values=values,
        follow=arguments.follow,
        beside=beside,
        text=step.text if values else None,
        lessons=_lessons(),
        docs=_site(arguments.docs),
        **more,
    )
    page.write(arguments.html)
    print(harmless(f"{arguments.html}: {len(session.tape.nodes)} calls, {size(len(page.html))}"))
    return 0


def _xor() -> Any:
    from toynn.testing.xor import Xor

    return Xor()


def _lessons() -> dict[str, list[str]]:
    """Return for a kernel's file its stop of the tour, and the puzzles that lead to it."""
    from toynn_puzzles import PUZZLES

    lessons = {
        f"toynn/_kernels/{name}.pyx": [f"docs/kernels.md#{stop}"]
        for stop, names in STOPS.items()
        for name in names
    }
    puzzles: dict[str, list[str]] = {}
    for puzzle in PUZZLES.values():
        file = re.sub(r"/_(\w+)\.pxd$", r"/\1.pyx", puzzle.same)  # the part of a kernel: its page
        puzzles.setdefault(f"toynn/{file}", []).append(str(puzzle.number))
    for path, numbers in puzzles.items():
        lessons.setdefault(path, []).append(f"docs/puzzles.md: toynn puzzles {', '.join(numbers)}")
    return lessons


def _site(typed: str | None) -> str | None:
    """Return the address of the site of the pages. Raises ConfigError for a folder without it."""
    if typed is not None and typed.startswith(("http://", "https://")):
        return typed.rstrip("/")
    folder = Path(__file__).parents[2] / "build" / "docs" if typed is None else Path(typed)
    if (folder / "index.html").is_file():
        return folder.resolve().as_uri()
    if typed is not None:
        raise ConfigError(f"--docs {typed}: expected a folder with index.html, or http(s)://...")
    return None


def _times(session: Any, take: Any) -> dict[str, Any]:
    """Return the seconds of each node, and its bound."""
    from toynn.backends.threads import get_num_threads
    from toynn.testing.limits import measure
    from toynn.testing.roofline import bounds, node_seconds

    limits = measure(session.n_threads or get_num_threads())
    return {"seconds": node_seconds(take, session), "bounds": bounds(session, limits)}


def _compared(step: Any, asked: str | None) -> Iterator[tuple[str, Any]]:
    """Yield the names and sessions of the requested variants, or of all that the recipe has."""
    for variant in VARIANTS if asked is None else asked.split(","):
        if variant != NONE:
            try:
                yield step.recorded(variant)
            except ConfigError:
                if asked is not None:
                    raise
