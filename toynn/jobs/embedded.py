"""How good vectors are: Spearman's correlation with scores, or how well texts are found again.

And how good the scores of a reranker are: by themselves, and as an order of a query's passages.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from toynn.data import pairs
from toynn.engines.encoder import Encoder
from toynn.errors import DataError
from toynn.evaluation.retrieval import cosines, found_again, ranked
from toynn.train.classify import of_scores, spearman


def vector_figures(
    engine: Encoder, data: Path, columns: Mapping[str, str], corpus: Path | None = None
) -> dict[str, Any]:
    """Return the figures of vectors on scored pairs, or on queries with texts that belong to them.

    Texts are looked for in ``corpus``, or in all that the data have. The prompts "query" and
    "document" of the model, if any, are before queries and texts; scored pairs have none.

    Raises DataError for bad rows.
    """
    prompts = engine.sentences.prompts
    engine.cut = 0

    def vectors(texts: Iterable[str], prompt: str = "") -> Any:
        return engine.encode([*texts], prompt=prompts.get(prompt, ""))

    if corpus is not None:
        queries, texts, relevant = pairs.read_search(data, corpus, columns)
    else:
        rows = (found := pairs.read(data, columns)).rows
        if found.is_scored:
            scores = np.array([row.score for row in rows])
            first, second = (vectors(row.texts[k] for row in rows) for k in (0, 1))
            figures = {"spearman": spearman(scores, cosines(first, second))}
            return {"data": str(data), "pairs": len(scores), "cut": engine.cut} | figures
        firsts, places, relevant = pairs.search([row.texts for row in rows])
        queries = [rows[k].texts[0] for k in firsts]
        texts = [rows[k].texts[column] for k, column in places]
    figures = found_again(vectors(queries, "query"), vectors(texts, "document"), relevant)
    named = {name.rpartition("/")[2]: figure for name, figure in figures.items()}
    counts = {"queries": len(queries), "texts": len(texts), "cut": engine.cut}
    return {"data": str(data)} | counts | named


def score_figures(engine: Encoder, data: Path, columns: Mapping[str, str]) -> dict[str, Any]:
    """Return the figures of a reranker on pairs with labels, of which those above a half are right.

    NDCG and MRR are of queries with a right passage and a wrong one; without any, there are none.
    Raises DataError for bad rows, and for rows without labels.
    """
    rows = (found := pairs.read(data, columns, lowest=0.0)).rows
    if not found.is_scored:
        raise DataError(
            f"{data}: expected query, passage and label; got {', '.join(found.columns)}"
        )
    labels, engine.cut = np.array([row.score for row in rows]), 0
    z = engine.outputs([row.texts[:2] for row in rows])[:, 0].astype(np.float64)  # type: ignore[misc]
    figures = of_scores(z, labels) | {"spearman": spearman(labels, z)}
    asked = defaultdict[str, list[int]](list)
    for k in np.argsort(-z, kind="stable").tolist():
        asked[rows[k].texts[0]].append(k)
    right = [labels[each] > 0.5 for each in asked.values()]
    both = [each for each in right if each.any() and not each.all()]
    told = {"data": str(data), "pairs": len(rows), "cut": engine.cut} | figures
    if both:
        hits = np.array([np.append(each, [False] * 10)[:10] for each in both])
        named = ranked(hits, np.array([each.sum() for each in both]))
        told |= {"queries": len(both)} | {n.rpartition("/")[2]: x for n, x in named.items()}
    return told
