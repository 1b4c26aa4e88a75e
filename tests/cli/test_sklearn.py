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
from small_encoders import with_words

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
    with pytest.raises(ConfigError, match="at least 2 classes; got 1"):
        model.fit(TEXTS, [1] * 12)
    with pytest.raises(ConfigError, match="method"):
        model.set_params(method="half").fit(TEXTS, LABELS)
