"""``toynn train classify``: texts with labels to a classifier in a run folder."""

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from toynn.data import labelled
from toynn.data.labelled import Encoded, LabelledTexts
from toynn.data.texts import Texts
from toynn.engines.encoder import Encoder, Task
from toynn.errors import ConfigError
from toynn.jobs.classified import pairs_of
from toynn.jobs.encoder import EncoderJob
from toynn.jobs.encoder_options import BALANCED, ClassifyOptions
from toynn.jobs.paths import text_model
from toynn.jobs.teacher import check_alone
from toynn.models.encoder import LABELS
from toynn.recipes import Classifier
from toynn.runs.series import series
from toynn.system.platform import in_shell
from toynn.system.printing import fact, harmless
from toynn.train import classify
from toynn.train.folder import RunFolder, Value
from toynn.train.loop import WHOLE
from toynn.train.state import Result

LOSSES = {"classes": "cross_entropy", "several": "binary", "number": "squared", "tokens": ""}
#: The metric that chooses the best weights, by what labels are.
METRIC = {"classes": "macro-f1", "several": "macro-f1", "number": "loss", "tokens": "entity-f1"}
SHOWN = 8  # classes that are listed
_FRACTION = re.compile(r"[+-]?\d+(\.\d*)?")


class ClassifyJob(EncoderJob):
    """``toynn train classify``."""

    name = "classify"
    kind = ClassifyOptions
    options: ClassifyOptions
    recipe_type = Classifier
    recipe: Classifier
    classes: tuple[str, ...]
    texts: tuple[LabelledTexts, LabelledTexts | None]

    # -- Data ----------------------------------------------------------------------------------

    def read_rows(self, progress: Any) -> Task:
        """Read the rows; classes are numbered as --labels, the model or the data have them.

        Raises ConfigError for fewer than two classes, and DataError for a bad row.
        """
        options = self.options
        separator = options.separator or ""
        train, valid = self.parts
        names = options.labels.split(",") if options.labels else []
        problem = "" if options.problem == "auto" else options.problem
        how = self.how(progress, problem=problem, separator=separator, names=names)
        rows = labelled.read(train, how)
        self.problem = rows.problem
        self.classes = tuple(names) or self._known(rows.classes)
        least = {"classes": 2, "tokens": 2, "several": 1, "number": 0}[self.problem]
        if len(set(rows.classes)) < least:
            raise ConfigError(
                f"--data {options.data}: expected at least {least} classes; got "
                f"{', '.join(rows.classes) or 'none'} in {len(rows.rows):,} rows"
            )
        how = replace(how, names=self.classes, problem=self.problem)
        self.texts = rows, None if valid is None else labelled.read(valid, how)
        self._check_loss()
        options.metric = METRIC[self.problem] if options.metric is None else options.metric
        if self.problem == "tokens":
            self.unit = self.items = "words"
        kind: Any = "tokens" if self.problem == "tokens" else "sequence"
        count = len(self.classes) or 1
        head_only = options.method == "head"
        return Task(kind, count, LOSSES[self.problem], head_only=head_only, names=self.classes)

    def _known(self, classes: Sequence[str]) -> tuple[str, ...]:
        """Return the model's classes if it has all of the data's; else the data's."""
        names = self.file.metadata.get(f"{self.file.architecture}.{LABELS}")
        known = tuple(map(str, names)) if isinstance(names, list) else ()
        return known if known and set(classes) <= set(known) else tuple(classes)

    def _check_loss(self) -> None:
        """Raise ConfigError for options that the loss has not."""
        options = self.options
        check_alone(options)
        weighted, smoothed = options.class_weights is not None, options.label_smoothing > 0
        if options.teacher is not None and self.problem != "classes":
            raise ConfigError(f"--teacher: it is for classes of texts; labels are {self.problem}")
        if options.teacher is not None and (weighted or smoothed or options.too_long == "drop"):
            raise ConfigError(
                "--teacher: not with --class-weights, --label-smoothing or --too-long drop"
            )
        if self.problem in ("number", "tokens") and (weighted or smoothed):
            flag = "--class-weights" if weighted else "--label-smoothing"
            raise ConfigError(f"{flag}: it is for classes of texts; labels are {self.problem}")
        if self.problem == "several" and weighted and smoothed:
            raise ConfigError("--label-smoothing: not with --class-weights, if labels are several")
        pairs = dict(pair.rpartition("=")[::2] for pair in (options.class_weights or "").split(","))
        if (
            weighted
            and options.class_weights != BALANCED
            and (new := pairs.keys() - {*self.classes})
        ):
            raise ConfigError(
                f"--class-weights: {min(new)!r} is none of the classes "
                f"{', '.join(self.classes[:SHOWN])}"
            )

    def encoded(self, engine: Encoder) -> tuple[Encoded, Encoded | None]:
        """Return the rows as tokens. Raises ConfigError for a teacher of other classes."""
        encode, fit = engine.tokenizer.encode_many, engine.fitted
        how = encode, fit, engine.longest, self.options.too_long
        train, valid = (
            None if part is None else labelled.encoded(part, self.classes, *how)
            for part in self.texts
        )
        assert train is not None
        return (train if self.options.teacher is None else self._taught(train)), valid

    def _taught(self, train: Encoded) -> Encoded:
        """Return texts with a teacher's probabilities. Raises ConfigError for other classes."""
        path = text_model(Path(str(self.options.teacher)), "--teacher")
        engine = self.teacher_of(Classifier, path)
        names = engine.names if engine.task.kind == "sequence" else ()
        if sorted(names) != sorted(self.classes) or engine.problem != "classes":
            said = ", ".join(names[:SHOWN]) or "no classes of texts"
            raise ConfigError(
                f"--teacher {path}: expected the classes {', '.join(self.classes[:SHOWN])}; got "
                f"{harmless(said, '')}"
            )
        told = engine.probabilities([row.text for row in self.texts[0].rows])
        return replace(train, taught=list(told[:, [names.index(name) for name in self.classes]]))

    @property
    def weights(self) -> np.ndarray:
        """The weights of classes in the loss, of the training texts; 1 if none are given."""
        typed, count = self.options.class_weights, len(self.classes)
        if typed is None:
            return np.ones(count)
        if typed != BALANCED:
            pairs = dict(pair.rpartition("=")[::2] for pair in typed.split(","))
            return np.array([float(pairs.get(name, 1)) for name in self.classes])
        labels = np.array(self.train.labels)
        if self.problem == "several":  # as many that do not hold as hold
            held = labels.sum(axis=0)
            return np.asarray((len(labels) - held) / np.maximum(held, 1))
        counts = np.bincount(labels, minlength=count)
        return np.asarray(len(labels) / (count * np.maximum(counts, 1)))

    def batches(self) -> Any:
        """Return the training texts in random order; labels may be weighted and smoothed."""
        share, texts = self.options.label_smoothing, self.train
        if self.options.teacher is not None:
            texts = replace(texts, share=self.options.teacher_weight)
        elif self._is_dense:
            count, w = len(self.classes), self.weights
            table = (1 - share) * np.diag(w) + share / count * w
            texts = replace(texts, table=table.astype(np.float32), weights=w)
        elif self.problem == "several" and share:
            smooth = [(1 - share) * each + share / 2 for each in self.train.labels]
            texts = replace(texts, labels=smooth)
        return self._shuffled(texts)

    @property
    def _is_dense(self) -> bool:
        options = self.options
        shared = options.class_weights or options.label_smoothing or options.teacher
        return self.problem == "classes" and bool(shared)

    def prepare(self, engine: Encoder) -> None:
        """Say whether labels are dense, and weigh labels that hold."""
        engine.dense = self._is_dense
        if self.problem == "several" and self.options.class_weights and hasattr(self, "train"):
            engine.positive_weights = self.weights.astype(np.float32)

    def described(self) -> Sequence[str]:
        """Return lines about the texts and their classes."""
        lines = list(super().described())
        if self.problem == "number":
            return [*lines, fact("labels", "numbers")]
        labels = [np.ravel(each) for each in self.train.labels]
        if self.problem == "several":
            counts = dict(enumerate(np.sum(labels, axis=0).astype(int).tolist()))
        else:
            counts = Counter(np.concatenate(labels).tolist())
        said = [f"{name} {counts.get(k, 0):,}" for k, name in enumerate(self.classes[:SHOWN])]
        more = f" and {len(self.classes) - SHOWN} more" if len(self.classes) > SHOWN else ""
        lines.append(fact("classes", harmless(f"{', '.join(said)}{more}", "")))
        if all(map(_FRACTION.fullmatch, self.classes)) and any("." in c for c in self.classes):
            lines.append(fact("", "they are numbers; to learn numbers: --problem number"))
        if self.options.teacher is not None:
            share = f"{self.options.teacher_weight:g} of the labels"
            lines.append(fact("teacher", harmless(f"{self.options.teacher}: {share}", "")))
        return lines

    def tables(self) -> dict[str, Mapping[str, Value]]:
        """Return config.toml's table of the data, with the classes."""
        data = dict(super().tables()["data"])
        return {"data": {**data, "problem": self.problem, "classes": self.classes}}

    # -- Measuring -----------------------------------------------------------------------------

    def measure(self, batch: Texts) -> dict[str, Any]:
        """Return loss and accuracy of a batch; and what ``joined`` takes of it."""
        outputs = self.recipe.outputs_of(batch)
        figures = classify.figures_of_batch(self.problem, outputs, batch.labels)
        return {**figures, WHOLE: pairs_of(self.problem, batch, outputs, self.classes)}

    def joined(self, measured: Sequence[Any]) -> Mapping[str, float]:
        """Return macro-f1 and what else is of all texts together."""
        return classify.joint(self.problem, measured, len(self.classes))

    def show(self, folder: RunFolder, result: Result) -> str:
        """Show how good the classifier is on the held-out texts."""
        measured = self.all_measured(result)
        if not measured:
            return ""
        figures = self.joined(measured)
        if self.problem == "classes":
            labels, decisions = (np.concatenate([each[k] for each in measured]) for k in (0, 1))
            matrix = classify.confusion(labels, decisions, len(self.classes))
            folder.notes["confusion"] = {"classes": list(self.classes), "counts": matrix.tolist()}
            print("--- confusion: a row for each class ---")
            print(harmless(classify.confusion_text(matrix, self.classes)))
            print("---")
            figures = {"accuracy": float((labels == decisions).mean()), **figures}
        return ", ".join(f"{series(name).short} {x:.4f}" for name, x in figures.items())

    def epilogue(self, folder: RunFolder, result: Result) -> Iterator[str]:
        """Yield commands that try the classifier."""
        run = in_shell(folder.path)
        yield f"try it      toynn predict --model {run} TEXTS.csv"
        kind = "Token" if self.problem == "tokens" else "Sequence"
        yield f"in Python   AutoModelFor{kind}Classification.from_pretrained({str(folder.path)!r})"
