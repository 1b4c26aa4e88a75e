"""How ``toynn check`` shows what it found: lengths as bars, and tokens with loss in colour."""

import math
import os
from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from typing import TextIO

import numpy as np
from numpy.typing import ArrayLike

from toynn.data.survey import ShownSequence
from toynn.system.printing import harmless

BINS, BAR, WIDTH = 12, 36, 78
LONGEST = 480  # most characters shown of a part; a longer part is cut in the middle
GREEN, DIM, PLAIN = "\x1b[32m", "\x1b[2m", "\x1b[0m"


def colours(stream: TextIO) -> bool:
    """Say whether to use colour: on a terminal, unless NO_COLOR is set (no-color.org)."""
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def histogram(lengths: ArrayLike, seq: int | None = None) -> Iterator[str]:
    """Yield a line for each range of lengths; the last range ends at the longest.

    The number of ranges is twice the cube root of the number of lengths (Rice's rule), and at most
    BINS. Ranges that reach beyond seq + 1 tokens are marked: --seq cuts their examples.
    """
    values = np.asarray(lengths, np.int64)
    last = min(BINS, max(2, math.ceil(2 * math.cbrt(len(values))))) - 1
    least, most = int(values.min()), float(np.quantile(values, 0.98))
    step = _round(max(1, (most - least) / last))
    base = least // step * step
    bins = np.minimum((values - base) // step, last)
    counts = np.bincount(bins)
    for k, count in enumerate(counts.tolist()):
        low = base + k * step
        high = low + step - 1 if k < last else max(int(values.max()), low)
        bar = "#" * -(-count * BAR // int(counts.max()))
        mark = "  cut by --seq" if seq is not None and high > seq + 1 and count else ""
        yield f"  {low:>7,} - {high:>7,}  {bar:{BAR}} {count:,}{mark}"


def _round(value: float) -> int:
    """Round up to 1, 2, 4, 5 or 8 times a power of ten."""
    ten: int = 10 ** int(np.log10(value))
    return next(int(k * ten) for k in (1, 2, 4, 5, 8, 10) if k * ten >= value)


def example(
    shown: ShownSequence, decode: Callable[[Sequence[int]], str], colour: bool
) -> Iterator[str]:
    """Yield an example in lines. Lines of tokens with loss begin with +; ``colour``: in green."""
    at = 0
    for trained, some in groupby(shown.trained):
        count = len(list(some))
        text = harmless(decode(shown.ids[at : at + count]), "\n\t")
        text = text.replace("\\", "\\\\").replace("\n", "\\n").replace("\t", "\\t")
        at += count
        if len(text) > LONGEST:
            half = LONGEST // 2
            text = f"{text[:half]} ... {len(text) - LONGEST:,} more ... {text[-half:]}"
        for begin in range(0, len(text), WIDTH - 2):
            line = f"{'+' if trained else ' '} {text[begin : begin + WIDTH - 2]}"
            yield f"{GREEN if trained else DIM}{line}{PLAIN}" if colour else line
