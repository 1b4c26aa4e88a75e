"""Texts that a model wrote, made safe to print."""

from unicodedata import category

__all__ = ["harmless"]


def harmless(text: str) -> str:
    """Return a text without control characters but line breaks and tabs.

    Others become U+FFFD: so no escape sequence reaches the terminal.
    """
    return "".join(
        "\N{REPLACEMENT CHARACTER}" if category(c) == "Cc" and c not in "\n\t" else c for c in text
    )
