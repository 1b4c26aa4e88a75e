"""``toynn train embed`` and ``rerank``: from pairs of texts to their vectors, or their scores."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from toynn.data import labelled, pairs
from toynn.data.labelled import Encoded, LabelledText, LabelledTexts
from toynn.data.pairs import DistinctBatches, EncodedRows, TextRows
from toynn.data.texts import Texts
from toynn.engines.encoder import Encoder, Task
from toynn.errors import ConfigError, DataError
from toynn.evaluation.retrieval import cosines, found_again
from toynn.jobs.encoder import EncoderJob
from toynn.jobs.encoder_options import EmbedOptions, RerankOptions, loss_of, prompts_of
from toynn.jobs.paths import text_model
from toynn.jobs.teacher import check_alone
from toynn.options import RecipeOptions
from toynn.recipes import Embedder, Reranker
from toynn.system.platform import in_shell
from toynn.system.printing import counted, fact, harmless
from toynn.train.classify import of_scores, spearman
from toynn.train.folder import RunFolder
from toynn.train.loop import WHOLE
from toynn.train.state import Result

MINI_BATCH = 32  # texts, of a loss whose name says that it is cached


class _PairsJob(EncoderJob):
    """A run on rows of texts."""

    lowest: ClassVar[float]  # score
    pairs: tuple[TextRows, TextRows | None]

    def read_pairs(self, progress: Any) -> TextRows:
        """Read the rows; return those to train on.

        Raises DataError if those to validate on have other columns.
        """
        how = self.how(progress)
        train, valid = (
            None
            if path is None
            else pairs.read(
                path, how.columns, lowest=self.lowest, bounds=how.bounds, progress=progress
            )
            for path in self.parts
        )
        assert train is not None
        if valid is not None and valid.columns != train.columns:
            raise DataError(
                f"{self.parts[1]}: expected the columns of the training data, "
                f"{', '.join(train.columns)}; got {', '.join(valid.columns)}"
            )
        self.pairs = train, valid
        return train

    def show(self, folder: RunFolder, result: Result) -> str:
        """Return how good the model is on the held-out rows."""
        measured = self.all_measured(result)
        figures = self.joined(measured) if measured else {}
        return ", ".join(f"{name.rpartition('/')[2]} {x:.4f}" for name, x in figures.items())


class EmbedJob(_PairsJob):
    """``toynn train embed``."""

    name = "embed"
    kind = EmbedOptions
    options: EmbedOptions
    recipe_type = Embedder
    recipe: Embedder
    train: EncodedRows
    held_out: EncodedRows
    lowest = -1.0

    def read_rows(self, progress: Any) -> Task:
        """Read the rows; their columns say which losses there are.

        Raises ConfigError for a loss that they do not fit.
        """
        options = self.options
        if options.method == "head":
            raise ConfigError("--method head: vectors have no head: full or lora")
        train = self.read_pairs(progress)
        self.columns = len(train.columns)
        loss, is_cached = loss_of(options.loss or ("cosent" if train.is_scored else "infonce"))
        needs = {"cosent": "scored rows", "triplet": "anchor, positive and one negative"}
        fits = {"cosent": train.is_scored, "triplet": self.columns == 3}.get(
            loss, not train.is_scored
        )
        if not fits:
            raise ConfigError(
                f"--loss {options.loss}: it needs {needs.get(loss, 'anchors and positives')}; the "
                f"columns are {', '.join(train.columns)}{' and a score' * train.is_scored}"
            )
        check_alone(options)
        if options.teacher is not None and (loss != "infonce" or options.symmetric):
            raise ConfigError("--teacher: it is for anchors and positives, without --symmetric")
        if is_cached and not options.mini_batch:
            options.mini_batch = MINI_BATCH
        if options.metric is None:
            options.metric = "spearman" if train.is_scored else "ndcg"
        return Task(
            "vectors",
            loss=loss,
            factor=options.scale,
            symmetric=options.symmetric,
            margin=options.margin,
            teacher_weight=0.0 if options.teacher is None else options.teacher_weight,
            dims=tuple(map(int, options.dims.split(","))) if options.dims else (),
            mini_batch=options.mini_batch,
        )

    def encoded(self, engine: Encoder) -> tuple[EncodedRows, EncodedRows | None]:
        """Return the rows as tokens."""
        prompts = prompts_of(self.options.prompts)
        how = engine.tokenizer.encode_many, engine.fitted, engine.longest, self.options.too_long
        train, valid = self.pairs
        teach = None if self.options.teacher is None else self._told
        rows = EncodedRows.of(train, prompts, *how, teach=teach)
        return rows, None if valid is None else EncodedRows.of(valid, prompts, *how)

    def _told(self, texts: Sequence[str]) -> np.ndarray:
        """Return the teacher's vectors of texts, which are those that the student reads."""
        path = text_model(Path(str(self.options.teacher)), "--teacher")
        return np.asarray(self.teacher_of(Embedder, path).encode(texts))

    def all_options(self) -> RecipeOptions:
        """Return the recipe's options, with room for a batch of the longest rows, or for a part."""
        options, part = self.recipe_options(), self.options.mini_batch
        texts = sorted(len(ids) for row in self.train.ids for ids in row)
        rows = sorted(self.train.lengths.tolist())
        room = sum(texts[-part:] if part else rows[-options.t_batch :])
        return replace(options, t_seq=texts[-1], t_batch=-(-room // texts[-1]))

    def prepare(self, engine: Encoder) -> None:
        """Say how many columns there are."""
        engine.columns = self.columns

    def _suited(self, engine: Encoder) -> Encoder:
        """Keep the prompts by sentence-transformers' names of what they are for."""
        super()._suited(engine)
        names, by_column = ("query", "document"), prompts_of(self.options.prompts)
        kept = {
            name: by_column[column]
            for name, column in zip(names, self.pairs[0].columns, strict=False)
            if column in by_column
        }
        prompts = {**engine.sentences.prompts, **kept}
        engine.sentences = replace(engine.sentences, prompts=prompts)
        return engine

    def described(self) -> Sequence[str]:
        """Return lines about the rows."""
        lines, columns = list(super().described()), ", ".join(self.pairs[0].columns)
        score = " and a score" if self.train.scores is not None else ""
        lines.append(fact("columns", f"{columns}{score}; the loss is {self.task.loss}"))
        if self.options.teacher is not None:
            share = f"{self.options.teacher_weight:g} of the labels"
            lines.append(fact("teacher", harmless(f"{self.options.teacher}: {share}", "")))
        if self.train.scores is None and (again := self.train.repeated):
            lines.append(fact("", f"{counted(again, 'positive')} repeated: never in one batch"))
        return lines

    # -- The loop ------------------------------------------------------------------------------

    def batches(self) -> DistinctBatches:
        """Return every row once an epoch, in random order; no text comes twice in a batch."""
        return DistinctBatches(self.train, self.options.batch, self.recipe_options().seed)

    def per_epoch(self) -> float:
        """Return the number of batches in the first pass through the data."""
        return self._per_epoch

    @cached_property
    def _per_epoch(self) -> float:
        return self.batches().per_epoch

    def measure(self, batch: Texts) -> dict[str, Any]:
        """Return the loss of a batch; and what ``joined`` takes of it."""
        vectors = self.recipe.encode([batch.inputs[a:b] for a, b in batch.spans])
        return {"loss": self.recipe.loss_of(vectors, batch.labels), WHOLE: vectors}

    def joined(self, measured: Sequence[Any]) -> Mapping[str, float]:
        """Return Spearman's correlation; or how well anchors find their positives among all."""
        split = [np.split(vectors, self.columns) for vectors in measured]
        columns = [np.concatenate(each) for each in zip(*split, strict=True)]
        held, size = self.held_out, self.options.batch
        order = [row for rows in held.distinct(range(len(held)), size) for row in rows]
        if held.scores is not None:
            return {"numbers/spearman": spearman(held.scores[order], cosines(*columns))}
        queries, places, relevant = pairs.search(held.keys[row] for row in order)
        texts = np.stack([columns[column][row] for row, column in places])
        return found_again(columns[0][queries], texts, relevant)

    def epilogue(self, folder: RunFolder, result: Result) -> Iterator[str]:
        """Yield commands that try the model."""
        run = in_shell(folder.path)
        yield f"try it      toynn embed --model {run} --data TEXTS.csv --out vectors.npy"
        yield f"in Python   SentenceTransformer({str(folder.path)!r})"


class RerankJob(_PairsJob):
    """``toynn train rerank``."""

    name = "rerank"
    kind = RerankOptions
    options: RerankOptions
    recipe_type = Reranker
    recipe: Reranker
    lowest = 0.0

    def read_rows(self, progress: Any) -> Task:
        """Read the rows. Raises ConfigError for rows without scores."""
        options = self.options
        train = self.read_pairs(progress)
        if not train.is_scored:
            raise ConfigError(
                f"--data {options.data}: expected query, passage and label; got the columns "
                f"{', '.join(train.columns)}"
            )
        options.metric = "loss" if options.metric is None else options.metric
        return Task("sequence", 1, "binary", head_only=options.method == "head")

    def encoded(self, engine: Encoder) -> tuple[Encoded, Encoded | None]:
        """Return the pairs as tokens."""
        encode, fit = engine.tokenizer.encode_many, engine.fitted
        as_tokens = partial(
            labelled.encoded,
            classes=(),
            encode=encode,
            fit=fit,
            longest=engine.longest,
            too_long=self.options.too_long,
        )
        train, valid = (None if part is None else as_tokens(_labelled(part)) for part in self.pairs)
        assert train is not None
        return train, valid

    def measure(self, batch: Texts) -> dict[str, Any]:
        """Return loss and accuracy of a batch; and what ``joined`` takes of it."""
        z = self.recipe.outputs_of(batch)[:, 0].astype(np.float64)
        labels = np.ravel(batch.labels)
        return {**of_scores(z, labels), WHOLE: (labels, z)}

    def joined(self, measured: Sequence[Any]) -> Mapping[str, float]:
        """Return Spearman's correlation of scores and labels."""
        labels, z = (np.concatenate(each) for each in zip(*measured, strict=True))
        return {"numbers/spearman": spearman(labels, z)}

    def epilogue(self, folder: RunFolder, result: Result) -> Iterator[str]:
        """Yield how the model is used."""
        yield f"in Python   CrossEncoder({str(folder.path)!r})"


def _labelled(texts: TextRows) -> LabelledTexts:
    rows = [LabelledText(row.texts, row.score, row.where) for row in texts.rows]
    return LabelledTexts("number", rows)
