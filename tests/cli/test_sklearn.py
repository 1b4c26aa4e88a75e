"""``toynn.sklearn.TextClassifier``: it does what scikit-learn asks of a classifier."""

import pickle
import sys
from importlib import import_module

import numpy as np
import pytest

pytest.importorskip("sklearn", reason="scikit-learn is not installed")
pytest.importorskip("tokenizers", reason="tokenizers is not installed")
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.utils import get_tags
from sklearn.utils.estimator_checks import check_estimator
from small_encoders import WORDS, with_words

from toynn.errors import ConfigError, DataError
from toynn.sklearn import TextClassifier

TEXTS = [f"{a} {b}" for a in ("a cat", "a dog", "find cat", "find dogs") for b in ("sat", "a", ":")]
LABELS = np.array([2 if "dog" in text else 1 for text in TEXTS])


def test_a_missing_scikit_learn_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "sklearn.base", None)
    monkeypatch.delitem(sys.modules, "toynn.sklearn")
    with pytest.raises(ImportError, match=r"needs scikit-learn, .*: pip install scikit-learn"):
        import_module("toynn.sklearn")


@pytest.fixture
def model(tmp_path):
    folder = with_words(tmp_path / "model", n_layers=1)
    return TextClassifier(str(folder), epochs=25, lr=0.01, batch=4)


def test_it_is_fitted_and_predicts(model, tmp_path, capsys):
    assert model.fit(TEXTS, LABELS) is model and capsys.readouterr().out == ""
    assert model.classes_.tolist() == [1, 2]
    shares = model.predict_proba(TEXTS)
    assert shares.shape == (12, 2) and np.abs(shares.sum(axis=1) - 1).max() < 1e-6
    assert model.predict(TEXTS).tolist() == model.classes_[shares.argmax(axis=1)].tolist()
    assert model.score(TEXTS, LABELS) == 1
    again = pickle.loads(pickle.dumps(pickle.loads(pickle.dumps(model))))
    assert np.abs(again.predict_proba(TEXTS) - shares).max() < 1e-6
    backwards = clone(model).fit(TEXTS[::-1], ["ab"[k - 1] for k in LABELS[::-1]])
    assert backwards.classes_.tolist() == ["a", "b"] and backwards.score(["a dog a"], ["b"]) == 1


def test_it_is_cloned_and_searched(model):
    copy = clone(model.set_params(epochs=1))
    assert copy.get_params() == model.get_params() and copy.epochs == 1
    assert not hasattr(copy, "engine_") and copy is not model
    scores = cross_val_score(copy.set_params(method="head"), TEXTS, LABELS, cv=2)
    assert scores.shape == (2,) and ((scores >= 0) & (scores <= 1)).all()
    found = GridSearchCV(copy, {"method": ["head", "full"]}, cv=2).fit(TEXTS, LABELS)
    assert found.best_params_["method"] in ("head", "full")


class OfRows(TextClassifier):
    """A classifier of rows of numbers, which become words: what check_estimator can test."""

    def __init__(self, model="", *, method="head", epochs=1.0):
        super().__init__(model, method=method, epochs=epochs)

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        tags.input_tags.two_d_array, tags.input_tags.string = True, False
        tags.classifier_tags.poor_score = True  # the words say little of the numbers
        return tags

    def fit(self, X, y):
        return super().fit(self._said(X), y)

    def predict_proba(self, X):
        return super().predict_proba(self._said(X))

    def _said(self, X):
        numbers = np.abs(3 * np.atleast_2d(np.asarray(X, float))).astype(int) % 6
        return [" ".join(WORDS[5 + k] for k in row) for row in numbers]


#: Checks that OfRows need not pass, and why; those of NaN, infinity, empty and other tables are not
#: made, since the tag no_validation says that texts are no table.
NOT_OF_TEXTS = dict.fromkeys(
    ("check_estimator_sparse_tag", "check_estimator_sparse_array", "check_estimator_sparse_matrix"),
    "a sparse matrix has no texts; OfRows makes them, not TextClassifier",
)


def test_it_passes_the_checks_of_scikit_learn(tmp_path):
    model = str(with_words(tmp_path / "model", n_layers=1))
    how = {"on_fail": None, "on_skip": None, "expected_failed_checks": NOT_OF_TEXTS}
    checks = check_estimator(OfRows(model), **how)  # skipped are those of absent packages
    assert not [each for each in checks if each["status"] == "failed"] and len(checks) > 40
    assert {c["check_name"] for c in checks if c["status"] == "xfail"} == {*NOT_OF_TEXTS}
    tags = get_tags(TextClassifier(model)).input_tags
    assert tags.string and not tags.two_d_array


def test_what_does_not_fit_is_refused(model):
    with pytest.raises(NotFittedError):
        model.predict(TEXTS)
    for texts in ("a text", [1, 2], [["a"]]):
        with pytest.raises(TypeError, match="expected a list of texts"):
            model.fit(texts, [1, 2])
    with pytest.raises(ValueError, match="as many labels as texts; got 1, 12"):
        model.fit(TEXTS, [1])
    with pytest.raises(DataError, match="2: text: expected a text; got an empty one"):
        model.fit(["a", ""], [1, 2])
    with pytest.raises(ValueError, match="at least 2 classes; got 1 class: 1"):
        model.fit(TEXTS, [1] * 12)
    with pytest.raises(ConfigError, match="method"):
        model.set_params(method="half").fit(TEXTS, LABELS)
