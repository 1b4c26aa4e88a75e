"""How well vectors find texts again: NDCG, MRR and recall of the nearest by cosine.

    recall@k   the share of a query's relevant texts that are among its first k
    MRR@k      1 / the place of the first relevant text; 0 if it is not among the first k
    NDCG@k     sum of 1 / log2(1 + place) over relevant texts among the first k, divided by the
               largest such sum that so many relevant texts allow

All are means over queries. Source: Järvelin & Kekäläinen 2002, ACM TOIS 20(4) (NDCG).
"""

from collections.abc import Collection, Sequence

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]
RECALL_AT = (1, 10, 100)
AT_ONCE = 256  # queries whose similarities with all texts are in memory


def _unit(x: Floats) -> Floats:
    lengths = np.linalg.norm(x, axis=-1, keepdims=True)
    return np.asarray(x / np.maximum(lengths, np.float32(1e-30)))


def cosines(x: Floats, y: Floats) -> Floats:
    """Return the cosine of each row of x (n, C) and the same row of y: (n,)."""
    return np.asarray((_unit(x) * _unit(y)).sum(axis=-1))


def nearest(queries: Floats, texts: Floats, k: int) -> NDArray[np.int64]:
    """Return the places of each query's k nearest texts, or of all: (n, k), the nearest first.

    Of equally near texts, the one that comes first.
    """
    texts, k = _unit(texts).T, min(k, len(texts))
    indices = [np.empty((0, k), np.int64)]
    for first in range(0, len(queries), AT_ONCE):
        far = -(_unit(queries[first : first + AT_ONCE]) @ texts)
        places = np.sort(np.argpartition(far, k - 1, axis=1)[:, :k], axis=1)
        order = np.argsort(np.take_along_axis(far, places, 1), axis=1, kind="stable")
        indices.append(np.take_along_axis(places, order, 1))
    return np.concatenate(indices)


def found_again(
    queries: Floats, texts: Floats, relevant: Sequence[Collection[int]]
) -> dict[str, float]:
    """Return the figures of queries (n, C) among texts (m, C), by metrics.jsonl's names.

    ``relevant`` has the places of each query's relevant texts, at least one.
    """
    places = nearest(queries, texts, max(RECALL_AT))
    hits = np.array([np.isin(row, [*wanted]) for row, wanted in zip(places, relevant, strict=True)])
    counts = np.array([len(set(wanted)) for wanted in relevant])
    figures = ranked(hits, counts)
    for k in RECALL_AT:
        figures[f"retrieval/recall@{k}"] = float((hits[:, :k].sum(axis=1) / counts).mean())
    return figures


def ranked(hits: NDArray[np.bool_], counts: NDArray[np.int64]) -> dict[str, float]:
    """Return NDCG and MRR of rows (n, k): whether each text, best first, is relevant.

    ``counts`` (n,) says how many texts are relevant to each query, at least one.
    """
    ten = hits[:, :10]
    gains = 1 / np.log2(np.arange(2, 12))
    best = np.cumsum(gains)[np.minimum(counts, 10) - 1]
    first = np.where(ten.any(axis=1), 1 / (1 + ten.argmax(axis=1)), 0.0)
    return {
        "retrieval/ndcg@10": float((ten @ gains[: ten.shape[1]] / best).mean()),
        "retrieval/mrr@10": float(first.mean()),
    }
