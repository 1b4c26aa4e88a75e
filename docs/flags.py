"""Write docs/flags.md, the reference of the flags of ``toynn train``: ``python docs/flags.py``."""

import re
import sys
from argparse import SUPPRESS
from pathlib import Path

PAGE = Path(__file__).with_suffix(".md")
sys.path.insert(0, str(PAGE.parents[1]))

from toynn.jobs.made import OPTIONS  # noqa: E402
from toynn.jobs.options import HEADINGS, MOST_USED  # noqa: E402

HEAD = """# Flags of toynn train

`python docs/flags.py` makes this page from the definitions of the options; `toynn train RECIPE
--help-all` prints the flags of one recipe. `--log-every 10` is `log_every = 10` in config.toml and
`log_every=10` for `toynn.finetune`. Names in parentheses are mlx-lm's and llama.cpp's; they are
taken, too.
"""
DEFAULT = re.compile(r" \(default:? (.*)\)$")


def said(option):
    """Return what a flag does in a recipe, and its default."""
    found = DEFAULT.search(option.described)
    text = option.described[: found.start()] if found else option.described
    words = set(re.findall(r"\w+", text))
    if not option.metavar and not words.issuperset(option.words):
        text += f": {', '.join(option.words)}"
    default = found[1] if found else ""
    return text, "off" if option.is_switch and not found else default


def rows(options):
    """Yield (heading, row) of a flag, for each thing that it does; ``options``, by recipe."""
    kinds = {}
    for recipe, option in options.items():
        if option.help != SUPPRESS:
            text, default = said(option)
            kinds.setdefault(text, {}).setdefault(default, []).append(recipe)
    first = sum(each.group == MOST_USED for each in options.values()) > len(options) / 2
    for text, defaults in kinds.items():
        recipes = [recipe for each in defaults.values() for recipe in each]
        one = options[recipes[0]]
        flag = f"`{one.flag}`" + (f" (`{one.also}`)" if one.also else "")
        where = "all" if len(recipes) == len(OPTIONS) else ", ".join(recipes)
        default = "; ".join(
            f"{value} ({', '.join(each)})" if len(defaults) > 1 else value
            for value, each in defaults.items()
            if value
        )
        heading = one.group if one.group != MOST_USED else options[recipes[-1]].group
        yield MOST_USED if first else heading, f"| {flag} | {where} | {text} | {default} |"


def page():
    """Return the text of the page."""
    flags, tables = {}, {heading: [] for heading in HEADINGS}
    for recipe, options in OPTIONS.items():
        for name, option in options.items():
            flags.setdefault(name, {})[recipe] = option
    for options in flags.values():
        for heading, row in rows(options):
            tables[heading].append(row)
    lines = [HEAD]
    for heading, found in tables.items():
        lines += [f"## {heading.capitalize()}\n", "| flag | recipes | what it does | default |"]
        lines += ["|---|---|---|---|", *found, ""]
    return "\n".join(lines)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
