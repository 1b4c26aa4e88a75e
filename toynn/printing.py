"""What is printed: texts from models and files made safe, times and sizes in short."""

from unicodedata import category

__all__ = ["counted", "duration", "harmless", "size"]

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


def counted(number: int, noun: str) -> str:
    """Return a number with its noun: 1 row, 1,000 rows."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def duration(seconds: float) -> str:
    """Return seconds as minutes:seconds, or hours:minutes:seconds."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def size(nbytes: float) -> str:
    """Return a size with its unit."""
    for unit, one in (("GB", 10**9), ("MB", 10**6)):
        if nbytes >= one:
            return f"{nbytes / one:.1f} {unit}"
    return f"{nbytes / 1000:.1f} kB"
