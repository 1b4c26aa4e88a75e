"""Texts from models and files, made safe to print."""

import sys
from unicodedata import category

__all__ = ["harmless", "print_error"]


def harmless(text: str, kept: str = "\n\t") -> str:
    """Return a text without control characters but those kept: line breaks and tabs.

    Others become U+FFFD: so no escape sequence reaches the terminal.
    """
    return "".join(
        "\N{REPLACEMENT CHARACTER}" if category(c) == "Cc" and c not in kept else c for c in text
    )


def print_error(message: str) -> None:
    """Print what went wrong, in one line; names from hostile files can be in it."""
    print("toynn: error:", harmless(" ".join(message.splitlines()), ""), file=sys.stderr)
