"""Figures of classifiers of texts, against scikit-learn and by hand."""

import numpy as np
import pytest

from toynn.train.classify import entities, figures_of_batch, joint


def halves(*columns):
    return list(zip(*(np.array_split(each, [7, 40]) for each in columns), strict=True))


def test_figures_of_classes_are_those_of_scikit_learn():
    metrics = pytest.importorskip("sklearn.metrics", reason="scikit-learn is not installed")
    rng = np.random.default_rng(0)
    for k, most in ((2, 2), (5, 4)):  # one class of five is never seen
        labels, found = rng.integers(0, most, 200), rng.integers(0, most, 200)
        found[::2] = labels[::2]
        got = joint("classes", halves(labels, found), k)
        assert got["classes/macro_f1"] == pytest.approx(
            metrics.f1_score(labels, found, average="macro")
        )
        assert got["classes/matthews"] == pytest.approx(metrics.matthews_corrcoef(labels, found))
    labels, found = rng.random((90, 4)) > 0.6, rng.random((90, 4)) > 0.5
    found[:, 3] = labels[:, 3] = False
    got = joint("several", halves(labels, found), 4)
    for average in ("macro", "micro"):
        expected = metrics.f1_score(labels, found, average=average, zero_division=0)
        assert got[f"classes/{average}_f1"] == pytest.approx(expected)
    outputs = np.where(found, 1.0, -2.0)
    expected = metrics.accuracy_score(labels, found)
    assert figures_of_batch("several", outputs, labels.astype("f"))["accuracy"] == pytest.approx(
        expected
    )


def test_spearman_is_that_of_scipy():
    stats = pytest.importorskip("scipy.stats", reason="SciPy is not installed")
    rng = np.random.default_rng(1)
    labels, found = rng.integers(0, 6, (80, 1)).astype("f"), rng.standard_normal(80)
    expected = stats.spearmanr(labels.ravel(), found).statistic
    got = joint("number", halves(labels, found), 1)["numbers/spearman"]
    assert got == pytest.approx(expected)
    assert joint("number", [(labels, np.ones(80))], 1)["numbers/spearman"] == 0


def test_losses_by_hand():
    outputs = np.array([[0.0, np.log(3)], [0.0, 0.0]])
    found = figures_of_batch("classes", outputs, [1, -100])
    assert found["loss"] == pytest.approx(np.log(4 / 3)) and found["accuracy"] == 1
    assert figures_of_batch("several", outputs, np.eye(2))["loss"] == pytest.approx(
        (2 * np.log(2) + np.log(4) + np.log(2)) / 4
    )
    assert figures_of_batch("number", np.array([[1.0], [4.0]]), [[2], [2]])["loss"] == 2.5


@pytest.mark.parametrize(
    ("tags", "expected"),
    [  # as seqeval's own get_entities finds them
        ("B-P I-P O B-L", {("P", 0, 2), ("L", 3, 4)}),
        ("I-P I-P B-P", {("P", 0, 2), ("P", 2, 3)}),
        ("B-P I-L I-L", {("P", 0, 1), ("L", 1, 3)}),
        ("O I-P O I-P", {("P", 1, 2), ("P", 3, 4)}),
        ("B-P I-P E-P I-P S-L S-L", {("P", 0, 3), ("P", 3, 4), ("L", 4, 5), ("L", 5, 6)}),
        ("O O", set()),
        ("B-A-B I-A-B", {("A-B", 0, 2)}),
    ],
)
def test_entities(tags, expected):
    assert entities(tags.split()) == expected


def test_f1_of_entities_by_hand():
    labels = [["B-P", "I-P", "O", "B-L"], ["O", "B-P"]]
    found = [["B-P", "I-P", "O", "O"], ["B-P", "B-P"]]  # 2 of 3 found, 2 of 3 told are right
    got = joint("tokens", [(labels[:1], found[:1]), (labels[1:], found[1:])], 5)
    two = pytest.approx(2 / 3)
    assert got == {"entities/precision": two, "entities/recall": two, "entities/f1": two}
    assert joint("tokens", [([["O"]], [["O"]])], 5)["entities/f1"] == 0
