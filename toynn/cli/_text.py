"""Texts from models and files, made safe to print."""

from unicodedata import category

__all__ = ["harmless"]


def harmless(text: str, kept: str = "\n\t") -> str:
    """Return a text without control characters but those kept: line breaks and tabs.

    Others become U+FFFD: so no escape sequence reaches the terminal.
    """
    return "".join(
        "\N{REPLACEMENT CHARACTER}" if category(c) == "Cc" and c not in kept else c for c in text
    )
