"""Figures of a classifier: loss and accuracy, the confusion matrix as numbers and text."""

import numpy as np
import pytest

from toynn.train.classify import confusion, confusion_text, loss_and_accuracy

NAMES = ("cat", "dog", "a very long name")
MATRIX = np.array([[5, 1, 0], [0, 7, 0], [2, 0, 1000]])


def test_loss_and_accuracy_by_their_definitions():
    logits = np.array([[1.0, 2.0], [3.0, 1.0], [5000.0, -5000.0]], np.float32)
    labels = np.array([1, 1, 0], np.int32)
    found = loss_and_accuracy(logits, labels)
    expected = [np.log1p(np.exp(-1)), np.log1p(np.exp(2)), 0]
    assert found["loss"] == pytest.approx(np.mean(expected), rel=1e-6)
    assert found["accuracy"] == pytest.approx(2 / 3)


def test_confusion_counts_rows_of_labels_and_columns_of_predictions():
    labels, predicted = [0, 0, 1, 2, 2, 2], [0, 1, 1, 0, 2, 2]
    expected = [[1, 1, 0, 0], [0, 1, 0, 0], [1, 0, 2, 0], [0, 0, 0, 0]]
    assert confusion(labels, predicted, 4).tolist() == expected


def test_text_of_few_classes_is_the_matrix():
    assert confusion_text(MATRIX, NAMES).splitlines() == [
        "               cat  dog a ve  <- predicted",
        "         cat     5    1    .",
        "         dog     .    7    .",
        "a very long…     2    . 1000",
    ]


def test_text_of_many_classes_is_their_commonest_mistakes():
    matrix = np.diag(np.full(20, 50))
    names = [f"class {i}" for i in range(20)]
    assert confusion_text(matrix, names) == "no mistakes"
    matrix[3, 4], matrix[7, 1], matrix[0, 19] = 2, 9, 2
    assert confusion_text(matrix, names).splitlines() == [
        "     9 of 59 class 7 predicted as class 1",
        "     2 of 52 class 0 predicted as class 19",
        "     2 of 52 class 3 predicted as class 4",
    ]
