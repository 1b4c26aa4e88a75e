"""Write what is made from the options of the jobs: ``python docs/flags.py``.

That is docs/flags.md, the reference of the flags of ``toynn train``, and toynn/jobs/keywords.py,
the types of ``toynn.finetune``'s options, which editors complete by and `help` shows.
"""

import json
import re
import sys
import textwrap
from argparse import SUPPRESS
from pathlib import Path
from typing import get_args, get_type_hints

PAGE = Path(__file__).with_suffix(".md")
TYPES = PAGE.parents[1] / "toynn" / "jobs" / "keywords.py"
sys.path.insert(0, str(PAGE.parents[1]))

from toynn.jobs import JOBS  # noqa: E402
from toynn.jobs.finetuning import keywords  # noqa: E402
from toynn.jobs.options import HEADINGS, MOST_USED  # noqa: E402

HEAD = """# Flags of toynn train

`python docs/flags.py` makes this page from the definitions of the options; `toynn train RECIPE
--help-all` prints the flags of one recipe. `--log-every 10` is `log_every = 10` in config.toml and
`log_every=10` for `toynn.finetune`. Names in parentheses are mlx-lm's and llama.cpp's; they are
taken, too.
"""
MODULE = '''"""The options of `toynn train lora`, typed: `python docs/flags.py` makes this file."""

from collections.abc import Sequence
from os import PathLike
from typing import Literal, TypedDict

__all__ = ["Keywords"]


class Keywords(TypedDict, total=False):
    """What ``toynn.finetune`` takes beside the model, the data and the run's folder."""
'''
DEFAULT = re.compile(r" \(default:? (.*)\)$")


def said(recipe, option):
    """Return what a flag does in a recipe, and its default."""
    found = DEFAULT.search(option.help)
    text = option.help[: found.start()] if found else option.help
    words = set(re.findall(r"\w+", text))
    if option.choices and not words.issuperset(option.choices):
        text += f": {', '.join(option.choices)}"
    default = found[1].replace(f"/{recipe}-", "/RECIPE-") if found else ""
    return text, "off" if option.is_switch and not found else default


def rows(options):
    """Yield (heading, row) of a flag, for each thing that it does; ``options``, by recipe."""
    kinds = {}
    for recipe, option in options.items():
        if option.help != SUPPRESS:
            text, default = said(recipe, option)
            kinds.setdefault(text, {}).setdefault(default, []).append(recipe)
    first = sum(each.group == MOST_USED for each in options.values()) > len(options) / 2
    for text, defaults in kinds.items():
        recipes = [recipe for each in defaults.values() for recipe in each]
        one = options[recipes[0]]
        flag = f"`{one.flag}`" + (f" (`{one.also}`)" if one.also else "")
        where = "all" if len(recipes) == len(JOBS) else ", ".join(recipes)
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
    for recipe, job in JOBS.items():
        for option in job.options:
            flags.setdefault(option.name, {})[recipe] = option
    for options in flags.values():
        for heading, row in rows(options):
            tables[heading].append(row)
    lines = [HEAD]
    for heading, found in tables.items():
        lines += [f"## {heading.capitalize()}\n", "| flag | recipes | what it does | default |"]
        lines += ["|---|---|---|---|", *found, ""]
    return "\n".join(lines)


def types():
    """Return the text of the module of keywords."""
    lines = []
    for option in keywords():
        text, default = said("lora", option)
        words = f"{text[0].upper()}{text[1:]}{f' (default {default})' if default else ''}."
        words = re.sub(r"--([a-z][\w-]*)", lambda flag: flag[1].replace("-", "_"), words)
        shown = textwrap.wrap(f'"""{words}'.replace("\\", "\\\\"), 93)
        end = [f'{shown.pop()}"""'] if len(shown) == 1 else ['"""']
        lines += [f"{option.name}: {typed(option)}", *shown, *end]
    return f"{MODULE}\n{textwrap.indent(chr(10).join(lines), '    ')}\n"


def typed(option):
    """Return the type of an option's values, as it is written in Python."""
    declared = get_type_hints(option.kind)[option.field]
    kinds = {each for each in (declared, *get_args(declared)) if each in (int, float, str)}
    kind = (kinds or {str}).pop().__name__
    if option.is_switch:
        return "bool"
    if option.choices:
        kind = f"Literal[{', '.join(map(json.dumps, option.choices))}]"
    elif option.is_path:
        kind = "str | PathLike[str]"
    elif option.metavar == "NAMES":
        kind = "str | Sequence[str]"
    return kind if option.default is not None else f"{kind} | None"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
    TYPES.write_text(types(), encoding="utf-8")
