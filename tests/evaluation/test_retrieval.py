"""Figures of retrieval, against values counted by hand."""

import math

import numpy as np

from toynn.evaluation.retrieval import cosines, found_again, nearest


def on_circle(*degrees):
    angles = np.radians(degrees)
    return (np.stack([np.cos(angles), np.sin(angles)], 1) * 3).astype(np.float32)


def test_the_nearest_come_first_and_ties_in_order():
    texts = on_circle(0, 50, 10, 300, 50)
    assert nearest(on_circle(45, 5), texts, 3).tolist() == [[1, 4, 2], [0, 2, 1]]
    assert nearest(on_circle(0), texts, 9).tolist() == [[0, 2, 1, 4, 3]]
    many = np.random.default_rng(0).standard_normal((700, 8)).astype(np.float32)
    alone = np.concatenate([nearest(many[k : k + 1], many, 5) for k in range(0, 700, 90)])
    assert (nearest(many, many, 5)[::90] == alone).all()


def test_figures_are_those_counted_by_hand():
    # Places of the texts by distance from the query: 0, 10, 20, ... degrees.
    texts = on_circle(*range(0, 150, 10))
    queries = on_circle(0, 0, 0)
    relevant = [{0}, [2, 4, 12], (11,)]
    found = found_again(queries, texts, relevant)
    ideal = 1 + 1 / math.log2(3) + 1 / math.log2(4)
    second = (1 / math.log2(4) + 1 / math.log2(6)) / ideal
    assert math.isclose(found["retrieval/ndcg@10"], (1 + second + 0) / 3, rel_tol=1e-12)
    assert math.isclose(found["retrieval/mrr@10"], (1 + 1 / 3 + 0) / 3, rel_tol=1e-12)
    assert math.isclose(found["retrieval/recall@1"], 1 / 3, rel_tol=1e-12)
    assert math.isclose(found["retrieval/recall@10"], (1 + 2 / 3 + 0) / 3, rel_tol=1e-12)
    assert found["retrieval/recall@100"] == 1


def test_more_relevant_texts_than_places():
    texts = on_circle(*range(0, 150, 10))
    found = found_again(on_circle(0), texts, [range(12)])
    assert math.isclose(found["retrieval/ndcg@10"], 1, rel_tol=1e-12)
    assert math.isclose(found["retrieval/recall@10"], 10 / 12, rel_tol=1e-12)
    few = found_again(on_circle(0), on_circle(40, 0), [[0]])
    assert math.isclose(few["retrieval/ndcg@10"], 1 / math.log2(3), rel_tol=1e-12)


def test_cosines():
    assert np.allclose(cosines(on_circle(0, 90), on_circle(60, 90)), [0.5, 1])
