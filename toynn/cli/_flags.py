"""Flags of the command line: options (toynn/options.py) for argparse."""

import re
import sys
from argparse import SUPPRESS, Action, ArgumentParser, BooleanOptionalAction, Namespace
from collections.abc import Iterable
from dataclasses import MISSING
from typing import Any, NoReturn

from toynn.errors import ConfigError
from toynn.formats.outtypes import KINDS, MIXES, OUTTYPES
from toynn.options import Option

#: Fields of configurations, and the options that set them under another name.
FIELDS = {"n_heads": "heads", "n_kv_heads": "kv_heads", "n_layers": "layers", "context": "seq"}
FIELDS |= {"t_seq": "seq", "t_batch": "batch", "image": "image_size"}

#: Headings that brief_help does not name.
PLAIN = (None, "options", "positional arguments", "most used")
#: Name of a parser's attribute: the options that --help shows, if it does not show all.
FIRST = "_first"

MIXES_NEED = (
    "Mixes need llama-cpp-python (pip install llama-cpp-python), and memory for the model in "
    "float32."
)


class Once(Action):
    """Store a value. A second value is an error: it does not replace the first."""

    advice = ""  # what to do instead

    def __call__(
        self, parser: ArgumentParser, namespace: Namespace, values: Any, option: str | None = None
    ) -> None:
        """Store the value. Raises ConfigError if the option has one already."""
        if getattr(namespace, self.dest, None) is not None:
            raise ConfigError(f"{option}: given twice; {self.advice}")
        setattr(namespace, self.dest, values)


class HelpAll(Action):
    """Print all options of a command."""

    def __call__(self, parser: ArgumentParser, *_: Any) -> NoReturn:
        """Print it, and exit as --help does."""
        parser._print_message(ArgumentParser.format_help(parser), sys.stdout)
        parser.exit()


def show_first(parser: ArgumentParser, names: Iterable[str], example: str) -> None:
    """Let --help show only these options and an example, and --help-all everything."""
    more = "show all options"
    parser.add_argument("--help-all", action=HelpAll, nargs=0, default=SUPPRESS, help=more)
    parser.epilog = " ".join(filter(None, [parser.epilog, f"Example: {example}"]))
    setattr(parser, FIRST, tuple(names))


def brief_help(parser: ArgumentParser) -> str | None:
    """Return the text of --help for a command with many options; None for one with few."""
    first = getattr(parser, FIRST, None)
    if first is None:
        return None
    shown = [action for action in parser._actions if action.dest in first]
    told = [action for action in parser._actions if action.help != SUPPRESS]
    rest = len(told) - len(shown) - 2  # without --help and --help-all
    titles = [group.title for group in parser._action_groups if group._group_actions]
    heads = [str(title) for title in titles if title not in PLAIN]
    formatter = parser._get_formatter()
    usual = [
        " ".join([*each.option_strings[-1:], str(each.metavar)]) for each in shown if each.required
    ]
    formatter.add_usage(" ".join([parser.prog, *usual, "[options]"]), [], [])
    formatter.add_text(parser.description)
    formatter.start_section("most used")
    formatter.add_arguments(shown)
    formatter.end_section()
    about = f": {', '.join(heads)}" if heads else ""
    formatter.add_text(f"--help-all shows {rest} more{about}.")
    formatter.add_text(parser.epilog)
    return formatter.format_help()


def add(parser: Any, option: Option, **more: Any) -> None:
    """Add the flag of an option to a parser or to one of its groups; argparse takes ``more``.

    Its value is checked when it is parsed, if no other ``type`` is given.
    """
    words = f"{{{','.join(option.words)}}}" if option.words else "N" if option.read else None
    settings: dict[str, Any] = {"default": None if option.default is MISSING else option.default}
    if option.is_switch:
        settings["action"] = BooleanOptionalAction if option.negated else "store_true"
    else:
        settings |= {"type": option.check, "metavar": option.metavar or words}
        settings |= {"action": Once} if option.once else {}
        settings |= {"nargs": "+"} if tuple in option.kinds else {}
    action: Any = parser.add_argument(
        option.flag, dest=option.name, help=option.described, **settings | more
    )
    action.words, action.advice = option.words, option.once


def add_all(parser: ArgumentParser, options: Iterable[Option], *, required: bool) -> None:
    """Add the flags of options, each under the heading of its group; values stay texts.

    An option that is not typed is absent from the namespace. Without ``required``, all options are
    optional.
    """
    groups: dict[str, Any] = {}
    for option in options:
        if option.group not in groups:
            groups[option.group] = parser.add_argument_group(option.group)
        more: dict[str, Any] = {} if option.is_switch else {"type": str}
        if required and option.default is MISSING:
            more["required"] = True
        add(groups[option.group], option, default=SUPPRESS, **more)


def add_outtype(parser: ArgumentParser, default: str | None, what: str, more: str) -> None:
    """Add --outtype, the type of ``what``; ``more`` ends its help."""
    kinds = (
        f"type of {what} ({', '.join(OUTTYPES)}), or a mix by llama.cpp's quantizer "
        f"({', '.join(MIXES)}){more}"
    )
    parser.add_argument(
        "--outtype", type=str.lower, choices=KINDS, default=default, metavar="TYPE", help=kinds
    )


def as_typed(message: str, options: Iterable[Option]) -> str:
    """Return an error message with flags in place of the fields that they set.

    "GPT2Config: n_heads must divide d_model" becomes "--heads must divide --d-model".
    """
    flags = {option.name: option.flag for option in options}
    flags |= {field: flags[name] for field, name in FIELDS.items() if name in flags}
    begin, colon, rest = message.partition(": ")
    if begin in flags:
        return f"{flags[begin]}{colon}{rest}"
    if re.fullmatch(r"\w+(Config|Options)", begin):
        return re.sub(r"\w+", lambda word: flags.get(word[0], word[0]), rest)
    return message
