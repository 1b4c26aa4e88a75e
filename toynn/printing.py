"""Texts from models and files, made safe to print."""

from unicodedata import category

__all__ = ["harmless"]

#: What turns the order of characters on a line: a name with them reads as another.
TURNING = frozenset(map(chr, [*range(0x202A, 0x202F), *range(0x2066, 0x206A)]))


def harmless(text: str, kept: str = "\n\t") -> str:
    """Return a text without control characters but those kept: line breaks and tabs.

    Others become U+FFFD, and so do those that turn the order of what follows: no escape sequence
    reaches the terminal, and no name reads as another.
    """
    return "".join(
        "\N{REPLACEMENT CHARACTER}"
        if (category(c) == "Cc" and c not in kept) or c in TURNING
        else c
        for c in text
    )
