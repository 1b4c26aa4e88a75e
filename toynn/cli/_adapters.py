"""``--adapter PATH[:WEIGHT] ...``: one adapter of a model, or a weighted sum of several."""

from argparse import ArgumentParser
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from toynn.formats.methods import Method
from toynn.jobs.weighted import STRICT, path_and_weight
from toynn.options import not_empty

if TYPE_CHECKING:
    from toynn.formats.adapters import Adapter
    from toynn.models import Source

HELP = "adapters: run folders, .gguf files or PEFT folders, added up by weight (a.gguf:0.5)"


class Weighted(NamedTuple):
    """An adapter's path and its weight in the sum."""

    path: Path
    weight: float


def weighted(text: str) -> Weighted:
    """Parse PATH or PATH:WEIGHT."""
    path, weight = path_and_weight(not_empty(text), "--adapter")
    return Weighted(path, 1.0 if weight is None else weight)


def add_adapters(parser: ArgumentParser, *, required: bool = False) -> None:
    """Add --adapter, which takes several paths and may be repeated, and --strict."""
    parser.add_argument(
        "--adapter",
        type=weighted,
        nargs="+",
        action="extend",
        required=required,
        metavar="PATH[:WEIGHT]",
        help=HELP,
    )
    parser.add_argument("--strict", action="store_true", help=STRICT)


def combined(
    typed: Sequence[Weighted] | None,
    base: "Source | None",
    method: Method = "cat",
    *,
    strict: bool,
) -> "Adapter | None":
    """Return all given adapters combined into one; None if none is given."""
    if not typed:
        return None
    from toynn.formats import adapters

    loaded = [adapters.load(each.path, base, strict=strict) for each in typed]
    if len(loaded) == 1 and typed[0].weight == 1:
        return loaded[0]
    return adapters.combine(loaded, [each.weight for each in typed], method, strict=strict)
