"""Count repeated rows, within data and across parts, and what --seq cuts and packs.

Texts are near if they share at least NEAR of their pairs of neighbouring words: the number that is
in both, divided by the number that is in any. Only texts that agree in some band of their
MinHash are compared. A pair of similarity s is found with a probability of 1 - (1 - s^4)^16: 99.98
% at 0.8. Source: Broder 1997, On the resemblance and containment of documents.
"""

import zlib
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from toynn.data.packing import pack

NEAR = 0.8
BANDS, ROWS = 16, 4  # of a MinHash
PACKED = 50_000  # the most examples that are packed to measure how full rows are


class Repeats(NamedTuple):
    """The number of rows that are copies; the index of the first copy and of its original."""

    rows: int
    first: tuple[int, int] | None


def repeated(hashes: ArrayLike) -> Repeats:
    """Count the rows with the hash of an earlier row."""
    values = np.asarray(hashes, np.uint64)
    _, first, inverse = np.unique(values, return_index=True, return_inverse=True)
    again = np.flatnonzero(first[inverse] != np.arange(len(values)))
    if not len(again):
        return Repeats(0, None)
    at = int(again[0])
    return Repeats(len(again), (at, int(first[inverse[at]])))


def common(held: ArrayLike, trained: ArrayLike) -> Repeats:
    """Count the held-out rows that are also training rows.

    ``first`` is the index of the first such held-out row, and of an equal training row. A hash of 0
    means no hash.
    """
    some, others = np.asarray(held, np.uint64), np.asarray(trained, np.uint64)
    copies = np.flatnonzero(np.isin(some, others) & (some != 0))
    if not len(copies):
        return Repeats(0, None)
    at = int(copies[0])
    return Repeats(len(copies), (at, int(np.flatnonzero(others == some[at])[0])))


def near(texts: Sequence[str]) -> Iterator[tuple[int, int]]:
    """Yield the index of each text that is near an earlier one, and that of the earlier one."""
    rng = np.random.default_rng(0)
    factors = rng.integers(1, 2**63, (BANDS * ROWS, 1), np.uint64) | np.uint64(1)
    waiting: list[dict[bytes, int]] = [{} for _ in range(BANDS)]
    runs: list[NDArray[np.uint64]] = []
    for k, text in enumerate(texts):
        words = ["", *text.split(), ""]
        crcs = {zlib.crc32(" ".join(pair).encode()) for pair in pairwise(words)}
        own = np.sort(np.fromiter(crcs, np.uint64))
        runs.append(own)
        least = (factors * (own + np.uint64(1)) >> np.uint64(20)).min(axis=1).reshape(BANDS, ROWS)
        others = {
            table.setdefault(band.tobytes(), k) for table, band in zip(waiting, least, strict=True)
        }
        for other in sorted(others - {k}):
            both = len(np.intersect1d(own, runs[other], assume_unique=True))
            if both >= NEAR * (len(own) + len(runs[other]) - both):
                yield k, other
                break


class Cut(NamedTuple):
    """What --seq does to examples."""

    cut: int  # examples that are longer
    dropped: int  # examples with no token with loss left
    lost: float  # the share of all tokens that is cut off
    rows: int  # rows of --seq tokens after packing
    filled: float  # the share of these rows that is tokens
    sampled: int | None  # examples that were packed, if not all


def cut_at(lengths: Any, trained: Any, prompts: Any, seq: int) -> Cut:
    """Return what rows of seq tokens do to examples of the given lengths.

    ``trained`` counts each example's tokens with loss, ``prompts`` the tokens before the first of
    them. An example of more than seq + 1 tokens loses its end; it is dropped if its prompt alone
    has as many.
    """
    long, counts, before = (np.asarray(each, np.int64) for each in (lengths, trained, prompts))
    room = seq + 1
    cut = long > room
    dropped = (counts == 0) | (cut & (before >= room))
    kept = np.minimum(long, room)[~dropped] - 1
    total = int(long.sum())
    lost = 1 - int(np.minimum(long, room)[~dropped].sum()) / total if total else 0.0
    rng = np.random.default_rng(0)
    some = kept if len(kept) <= PACKED else rng.choice(kept, PACKED, replace=False)
    rows = _rows(some, seq)
    filled = float(some.sum()) / (rows * seq) if rows else 0.0
    sampled = None if len(some) == len(kept) else len(some)
    whole = rows if sampled is None else round(float(kept.sum()) / (seq * filled))
    return Cut(int(cut.sum()), int(dropped.sum()), lost, whole, filled, sampled)


def _rows(lengths: NDArray[np.int64], seq: int) -> int:
    counted: Sequence[int] | NDArray[np.int64] = lengths
    return len(pack(counted, seq, np.arange(len(lengths)))) if len(lengths) else 0
