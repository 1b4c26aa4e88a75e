"""Tell whether a model learns where to end, by its loss on stop tokens and on other labels."""

from collections.abc import Collection, Iterable, Mapping
from math import log
from typing import Any

import numpy as np

from toynn.data.batch import IGNORED

__all__ = ["REST", "STOP", "added", "sums", "unlearned"]

STOP, REST = "stop/loss", "rest/loss"  # of stop tokens, and of all other labels that count


def sums(labels: Any, ends: Collection[int], losses: Any = None) -> dict[str, tuple[float, int]]:
    """Return the sum of the losses of stop tokens, and of the rest, each with how many there are.

    ``losses`` are those of the labels that count, in their order; without them the sums are 0.
    """
    counted = np.asarray(labels)[np.asarray(labels) != IGNORED]
    losses = np.zeros(len(counted)) if losses is None else losses.astype(np.float64)
    are_ends = np.isin(counted, list(ends))
    parts = {STOP: are_ends, REST: ~are_ends}
    return {name: (float(losses[part].sum()), int(part.sum())) for name, part in parts.items()}


def added(found: Iterable[Mapping[str, tuple[float, int]]]) -> dict[str, tuple[float, int]]:
    """Return what several ``sums`` are together."""
    totals = {STOP: (0.0, 0), REST: (0.0, 0)}
    for each in found:
        for name, (total, count) in each.items():
            totals[name] = totals[name][0] + total, totals[name][1] + count
    return totals


def unlearned(means: Mapping[str, float], counts: Mapping[str, int]) -> bool:
    """Say whether losses are those of a model that does not learn where to end.

    It knows other tokens better, and expects a stop token, where one belongs, less than by the
    share of all labels that are stop tokens: that much it would expect if it knew nothing of where
    they belong. So stop tokens that cannot be foreseen, behind long documents, do not count.
    """
    share = counts[STOP] / (counts[STOP] + counts[REST])
    return means[STOP] > means[REST] and means[STOP] > -log(share)
