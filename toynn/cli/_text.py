"""Text from files and from models, as it may be shown on a terminal."""

__all__ = ["printable"]

UNPRINTABLE = "\N{REPLACEMENT CHARACTER}"


def printable(text: str, kept: str = "") -> str:
    """Return text without escape sequences and the like, save the characters to be kept."""
    return "".join(c if c.isprintable() or c in kept else UNPRINTABLE for c in text)
