"""Tell whether a model learns where to end, by its loss on stop tokens and on other labels."""

from collections.abc import Collection, Iterable, Mapping
from math import log
from typing import Any

import numpy as np

from toynn.data.batch import IGNORED

STOP, REST = "stop/loss", "rest/loss"  # loss on stop tokens, and on all other valid labels


def sums(labels: Any, ends: Collection[int], losses: Any = None) -> dict[str, tuple[float, int]]:
    """Return (sum of losses, count) of stop tokens, and of the rest.

    ``losses`` has a loss for each valid label, in their order; without losses the sums are 0.
    """
    counted = np.asarray(labels)[np.asarray(labels) != IGNORED]
    losses = np.zeros(len(counted)) if losses is None else losses.astype(np.float64)
    are_ends = np.isin(counted, list(ends))
    parts = {STOP: are_ends, REST: ~are_ends}
    return {name: (float(losses[part].sum()), int(part.sum())) for name, part in parts.items()}


def added(batches: Iterable[Mapping[str, tuple[float, int]]]) -> dict[str, tuple[float, int]]:
    """Return the total of several ``sums``."""
    totals = {STOP: (0.0, 0), REST: (0.0, 0)}
    for each in batches:
        for name, (total, count) in each.items():
            totals[name] = totals[name][0] + total, totals[name][1] + count
    return totals


def unlearned(means: Mapping[str, float], counts: Mapping[str, int]) -> bool:
    """Say whether a model does not learn where to end, by its mean losses.

    Two conditions must hold. The loss on stop tokens exceeds the loss on the rest. It also exceeds
    -log(share), where share is the fraction of labels that are stop tokens. A model that gives stop
    tokens the same probability everywhere has that loss. So stop tokens that no model can predict,
    such as the ends of long documents, give no warning.
    """
    share = counts[STOP] / (counts[STOP] + counts[REST])
    return means[STOP] > means[REST] and means[STOP] > -log(share)
