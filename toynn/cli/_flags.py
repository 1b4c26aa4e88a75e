"""Flags of the command line: each is declared once, and says what its value is for.

One part of a flag is argparse's: how it is typed, what may follow, its help. The other is where the
value goes: ``to`` names the options that it is a field of, such as ``{LoopOptions: "log_every"}``,
and ``gathered`` fills them. What ``to`` does not name, the recipe reads from the arguments itself.
"""

import re
from argparse import Action, ArgumentParser, Namespace
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from toynn.errors import ConfigError

__all__ = ["Flag", "Once", "as_typed", "gathered", "resolve_source", "with_defaults"]

#: Fields of configurations and options that flags have other names for.
FIELDS = {"n_heads": "heads", "n_kv_heads": "kv_heads", "n_layers": "layers", "context": "seq"}
FIELDS |= {"t_seq": "seq", "t_batch": "batch", "image": "image_size"}


class Once(Action):
    """Stores a value; a second one is refused, and does not take the first one's place."""

    advice = "a run goes on with one (`toynn export` adds them up)"

    def __call__(
        self, parser: ArgumentParser, namespace: Namespace, values: Any, option: str | None = None
    ) -> None:
        """Store it. Raises ConfigError if there is one."""
        if getattr(namespace, self.dest, None) is not None:
            raise ConfigError(f"{option}: given twice; {self.advice}")
        setattr(namespace, self.dest, values)


@dataclass(frozen=True)
class Flag:
    """An option of the command line.

    Attributes
    ----------
    name
        Of the argument: "log_every" is typed as --log-every.
    help
        What it means. "{default}" stands for the default.
    default
        What holds where it is not given.
    read
        What makes a value of what is typed: argparse's ``type``.
    choices, metavar, required, action, nargs
        As argparse takes them; what ``read`` reads is called "N" if nothing else is said.
    to
        Types of options, each with the name of the field that the value fills.
    words
        What the shell completes where there are no choices: of values that may be others, too.
    source
        What a model (an adapter) that the run starts from means for it. "same": nothing. "own": the
        source has a value of its own, and giving another is refused. "may": the default is the
        source's, and one that is given goes before it.
    """

    name: str
    help: str
    default: Any = None
    read: Callable[[str], Any] | None = None
    choices: Sequence[str] | None = None
    metavar: str | None = None
    required: bool = False
    action: Any = None
    nargs: str | None = None
    to: Mapping[type, str] = field(default_factory=dict)
    words: Sequence[str] = ()
    source: Literal["same", "own", "may"] = "same"

    @property
    def option(self) -> str:
        """How it is typed."""
        return f"--{self.name.replace('_', '-')}"

    def add_to(self, parser: ArgumentParser) -> None:
        """Add it to a parser. Where it depends on a source, it is None unless it is given."""
        settings: dict[str, Any] = {
            "type": self.read,
            "choices": self.choices,
            "metavar": self.metavar or ("N" if self.read else None),
            "required": self.required or None,
            "action": self.action,
            "nargs": self.nargs,
        }
        action: Any = parser.add_argument(
            self.option,
            help=self.help.format(default=self.default),
            default=self.default if self.source == "same" else None,
            **{name: value for name, value in settings.items() if value is not None},
        )
        action.words = self.words


def with_defaults(flags: Iterable[Flag], **defaults: Any) -> tuple[Flag, ...]:
    """Return flags, some of them with other defaults."""
    return tuple(
        replace(flag, default=defaults[flag.name]) if flag.name in defaults else flag
        for flag in flags
    )


def resolve_source(flags: Iterable[Flag], arguments: Namespace, source: str, what: str) -> bool:
    """Say whether the run starts from a source; fill in defaults if not.

    ``source`` is the argument that names it, and ``what`` it is. Raises ConfigError if a flag is
    given that the source leaves no choice about.
    """
    found = vars(arguments)
    for flag in flags:
        if found.get(source) is None:
            if flag.source != "same" and found[flag.name] is None:
                found[flag.name] = flag.default
        elif flag.source == "own" and found[flag.name] is not None:
            typed = f"--{source.replace('_', '-')}"
            raise ConfigError(f"{flag.option}: the {what} that {typed} names has its own")
    return found.get(source) is not None


def as_typed(message: str, flags: Iterable[Flag]) -> str:
    """Return what Python says of a value with the names of the flags that it comes from.

    "GPT2Config: n_heads must divide d_model" says so of --heads and --d-model.
    """
    options = {flag.name: flag.option for flag in flags}
    options |= {field: options[name] for field, name in FIELDS.items() if name in options}
    begin, colon, rest = message.partition(": ")
    if begin in options:
        return f"{options[begin]}{colon}{rest}"
    if re.fullmatch(r"\w+(Config|Options)", begin):
        return re.sub(r"\w+", lambda word: options.get(word[0], word[0]), rest)
    return re.sub(r"(\w+)=True", lambda word: options.get(word[1], word[0]), message)


def gathered(kind: type, flags: Iterable[Flag], arguments: Namespace) -> dict[str, Any]:
    """Return the fields of options of a kind that flags fill; those that are None are left out."""
    values = {flag.to[kind]: getattr(arguments, flag.name) for flag in flags if kind in flag.to}
    return {name: value for name, value in values.items() if value is not None}
