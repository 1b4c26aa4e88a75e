"""How good vectors are: Spearman's correlation with scores, or how well texts are found again."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from toynn.data import pairs
from toynn.engines.encoder import Encoder
from toynn.evaluation.retrieval import cosines, found_again
from toynn.train.classify import spearman

__all__ = ["vector_figures"]


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
