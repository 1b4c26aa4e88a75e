"""A classifier of texts for scikit-learn.

    from toynn.sklearn import TextClassifier

    model = TextClassifier("all-MiniLM-L6-v2", epochs=2).fit(texts, labels)
    model.predict(["It was good."]), model.predict_proba(more), model.score(texts, labels)
    cross_val_score(TextClassifier("all-MiniLM-L6-v2", method="head"), texts, labels)

It trains as `toynn train classify` does, and holds nothing out.
"""

from collections.abc import Iterable, Sequence
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from toynn.jobs.classified import classifier
from toynn.jobs.finetuning import kept, silence
from toynn.jobs.made import made
from toynn.jobs.run import carried_out

try:
    base: Any = import_module("sklearn.base")
except ImportError as error:
    raise ImportError(
        "toynn.sklearn needs scikit-learn, which is not installed: pip install scikit-learn"
    ) from error


class TextClassifier(base.ClassifierMixin, base.BaseEstimator):  # type: ignore[misc]
    """Fine-tune an encoder on texts and their classes.

    Parameters
    ----------
    model
        A folder of Hugging Face or sentence-transformers, a GGUF file, or hf:OWNER/NAME.
    method, epochs, lr, batch, seq, seed, class_weights, label_smoothing, threads
        Options of `toynn train classify`.

    Attributes
    ----------
    classes_
        The classes, sorted.
    engine_
        The trained ``toynn.recipes.Classifier``; its ``export_hf`` writes the model.
    """

    def __init__(
        self,
        model: str = "",
        *,
        method: str = "full",
        epochs: float = 3.0,
        lr: float | None = None,
        batch: int = 32,
        seq: int | None = None,
        seed: int = 0,
        class_weights: str | None = None,
        label_smoothing: float = 0.0,
        threads: int | None = None,
    ) -> None:
        self.model, self.method, self.epochs, self.lr = model, method, epochs, lr
        self.batch, self.seq, self.seed, self.threads = batch, seq, seed, threads
        self.class_weights, self.label_smoothing = class_weights, label_smoothing

    def __sklearn_tags__(self) -> Any:
        """Return scikit-learn's tags: X is a list of texts, not a table of numbers."""
        tags = super().__sklearn_tags__()
        tags.input_tags.two_d_array, tags.input_tags.string = False, True
        tags.no_validation = True
        return tags

    def fit(self, texts: Iterable[str], labels: Sequence[Any]) -> Self:
        """Train on texts (n,) with a class each (n,).

        Raises ValueError for numbers of them that differ and for one class, and what `toynn train
        classify` raises: DataError for an empty text, ConfigError for an option out of range.
        """
        rows, given = _texts(texts), np.asarray(labels)
        self.classes_, names = np.unique(given), [str(label) for label in given.tolist()]
        if len(rows) != len(names):
            raise ValueError(f"expected as many labels as texts; got {len(names)}, {len(rows)}")
        if len(self.classes_) == 1:
            raise ValueError(f"expected at least 2 classes; got 1 class: {names[0]}")
        options = {**self.get_params(), "holdout": 0, "eval_every": 0, "save_every": 0}
        with TemporaryDirectory() as folder, silence():
            data = kept(
                [{"text": a, "label": b} for a, b in zip(rows, names, strict=True)], Path(folder)
            )
            options |= {
                "data": data,
                "out": f"{folder}/run",
                "problem": "classes",
                "report": "none",
            }
            self.__dict__.pop("files_", None)
            self._keep(carried_out(made("classify", options)).job.recipe)
        return self

    def _keep(self, engine: Any) -> None:
        self.engine_ = engine
        known = [str(label) for label in self.classes_.tolist()]
        self.order_ = [engine.names.index(name) for name in known]

    def predict_proba(self, texts: Iterable[str]) -> NDArray[Any]:
        """Return the probability of each of ``classes_`` (n, K). Raises TypeError before fit."""
        if not hasattr(self, "engine_"):
            import_module("sklearn.utils.validation").check_is_fitted(self)
        probabilities: NDArray[Any] = self.engine_.probabilities(_texts(texts))
        return probabilities[:, self.order_]

    def predict(self, texts: Iterable[str]) -> NDArray[Any]:
        """Return the likeliest class of each text (n,)."""
        likeliest = self.predict_proba(texts).argmax(axis=1)
        return np.asarray(self.classes_[likeliest])

    def __getstate__(self) -> dict[str, Any]:
        """Return the parameters, and the files of the trained model."""
        state = {name: value for name, value in vars(self).items() if name != "engine_"}
        if hasattr(self, "engine_") and "files_" not in state:
            with TemporaryDirectory() as folder:
                self.engine_.write_run(Path(folder))
                files = (path for path in Path(folder).rglob("*") if path.is_file())
                state["files_"] = {path.name: path.read_bytes() for path in files}
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Take the parameters, and load the trained model."""
        files = state.get("files_", {})
        self.__dict__.update(state)
        with TemporaryDirectory() as folder:
            for name, content in files.items():
                (Path(folder) / name).write_bytes(content)
            if files:
                self._keep(classifier(Path(folder)))
                self.engine_.tokenizer  # noqa: B018 - which is read now, while the folder is there


def _texts(texts: Iterable[str]) -> list[str]:
    """Return texts as a list. Raises TypeError for other values."""
    rows = list(texts)
    if isinstance(texts, str) or not all(isinstance(text, str) for text in rows):
        raise TypeError("expected a list of texts, or an array of them; got other values")
    return [str(text) for text in rows]
