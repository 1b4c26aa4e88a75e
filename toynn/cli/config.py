"""``toynn config``: what was built, and which parts of it this machine uses."""

from argparse import Namespace
from typing import Any

from toynn.cli._commands import add_command


def add_parser(commands: Any) -> None:
    """Add the command to the parser's commands."""
    parser = add_command(commands, "config", description=None)
    parser.set_defaults(run=run)


def run(_: Namespace) -> int:
    """Print the configuration."""
    from toynn.backends.config import show_config

    show_config()
    return 0
