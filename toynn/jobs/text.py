"""Jobs on texts: data through a tokenizer, and samples of the model."""

from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cached_property
from itertools import chain, takewhile
from pathlib import Path
from typing import Any

import numpy as np

from toynn.data import jsonl
from toynn.data.batch import IGNORED
from toynn.data.bounds import Bounds
from toynn.data.digest import digest
from toynn.data.examples import Examples
from toynn.data.jsonl import Dataset
from toynn.data.mixture import Mixture
from toynn.data.preference import PreferenceData
from toynn.data.reader import ReadOptions
from toynn.data.splits import files_of
from toynn.data.stream import Progress
from toynn.data.taught import TaughtFile, is_taught
from toynn.engines.engine import Engine
from toynn.engines.teacher import Teacher
from toynn.errors import ConfigError, DataError
from toynn.evaluation import delimited, read_questions
from toynn.formats.tokenizer import Tokenizer
from toynn.formats.tokenizer.folder import has_tokenizer
from toynn.generation.drawing import generate
from toynn.jobs import ends
from toynn.jobs.job import Job, late
from toynn.jobs.metrics import TEACHER, Asked, beside, measured
from toynn.jobs.teacher import check_alone, opened, taught_batches, written
from toynn.jobs.text_options import (
    CACHED,
    OF_QUESTIONS,
    SAMPLE_ON_THE_WAY,
    TOKENS,
    TextJobOptions,
    columns_of,
)
from toynn.jobs.weighted import path_and_weight, source_names
from toynn.options import RecipeOptions
from toynn.system.platform import in_shell
from toynn.system.printing import counted, fact, harmless, print_line
from toynn.train.folder import RunFolder, Value
from toynn.train.progress import Reading
from toynn.train.state import Figures, Result
from toynn.train.token_cache import TokenCache

EVAL_BATCHES = 16
SHOWN_BATCHES = 4  # training batches to measure stop tokens on, if nothing is held out
SAMPLE_PROMPT = 32  # tokens of a text that a sample continues
EXAMPLE_PROMPT = 8  # tokens of an example without a prompt that a sample continues
SAMPLE_TOKENS = 256


def rows_within(seq: int, context: int) -> tuple[int, str]:
    """Return the tokens of a row, and a note if the model's context is shorter than --seq."""
    if seq <= context:
        return seq, ""
    return context, f"--seq {seq}: the model's context is {context} tokens: rows have {context}"


#: Suffixes of files that are not texts: toynn reads them as rows, or refuses them.
NO_TEXTS = frozenset(
    [
        ".bin",
        ".jsonl",
        ".json",
        ".csv",
        ".tsv",
        ".parquet",
        ".arrow",
        ".feather",
        ".gz",
        ".zst",
        ".zip",
    ]
)


class TextJob(Job):
    """A run on texts or examples."""

    options: TextJobOptions
    tokenizer: Tokenizer
    asked: Sequence[Asked] = ()
    of_questions: frozenset[str] = OF_QUESTIONS  # metrics that need questions
    data: Dataset | PreferenceData | Mixture
    teacher: Teacher | TaughtFile | None = None

    def __init__(self, typed: Mapping[str, Any], command: str | None = None) -> None:
        """Take the options. Raises ConfigError for contradictory ones."""
        super().__init__(typed, command)
        check_alone(self.options)
        valid, holdout = self.options.valid, self.options.holdout
        if valid is not None and holdout is not None:
            raise ConfigError(
                f"--holdout {holdout:g}: --valid {valid} is the validation data already: give one "
                "of the two"
            )
        self.t_seq = 0  # tokens of a row, once the data are read

    def read_text(self, seq: int) -> None:
        """Read --data, by default the embedded text; windows have at most seq tokens.

        Raises ConfigError if the validation part contradicts other options, or is needed and
        missing.
        """
        sources, store = self._sources(), self._store()
        with Reading() as reading:
            how = self.reading(seq, store, reading)
            datasets = [self.read_source(path, how) for path, _ in sources]
            if self.options.valid is not None:
                datasets = [self._with_valid(datasets, how)]
        for text in (each.source for each in datasets):
            if text is not None and text.sha256 is not None:
                said = f"{text.name}: {text.bytes:,} bytes, sha256 {text.sha256[:12]}"
                self.say("corpus", said)
        if len(datasets) == 1:
            self.data = datasets[0]
        else:
            names = source_names([Path(str(path)) for path, _ in sources])
            weights = [weight for _, weight in sources if weight is not None]
            self.data = Mixture.of(dict(zip(names, datasets, strict=True)), weights or None)
        for note in self.data.notes:
            self.say("data", note)
        self.t_seq = self.data.seq
        self._check_held_out()
        if self.options.teacher is not None and is_taught(self.options.teacher):
            self.teacher = written(self.options, self.tokenizer, self.data)
        elif self.options.teacher is not None:
            named, ours = self.options, replace(self.recipe_options(), t_seq=self.t_seq)
            told = named.teacher_top_k, named.teacher_temperature, named.teacher_weight
            self.teacher = opened(self.options.teacher, self.tokenizer, ours, *told)

    def _with_valid(
        self, datasets: Sequence[Dataset | PreferenceData], how: ReadOptions
    ) -> Dataset | PreferenceData:
        """Return the data with --valid as the validation part."""
        path = str(self.options.valid)
        if len(datasets) > 1:
            raise ConfigError(
                f"--valid {path}: expected one source as --data; got {len(datasets)}: give each a "
                "folder with train.jsonl and valid.jsonl"
            )
        other: Any = self.read_source(str(jsonl.measured_part(Path(path))), how)
        return datasets[0].with_valid(other, path)

    def _check_held_out(self) -> None:
        """Raise ConfigError if a metric needs held-out data and nothing is held out."""
        if any(len(part.valid) for _, part in self.parts):
            return
        needed = [f"--metric {name}" for name in self.metrics if name not in self.of_questions]
        if needed and (self.metrics != ("loss",) or self.asked or self.options.early_stopping):
            other = ", or choose by --metric accuracy" if self.asked else ""
            raise ConfigError(
                f"{needed[0]}: nothing is held out to measure it on: name a file by --valid, or "
                "hold rows out by --holdout" + other
            )

    def _sources(self) -> list[tuple[str | None, float | None]]:
        """Return the path of each source of data, with its weight or None."""
        words = self.options.data
        if not isinstance(words, tuple):
            return [(words, None)]
        weighted = (path_and_weight(word, "--data") for word in words)
        return [(str(path), weight) for path, weight in weighted]

    def reading(self, seq: int, store: TokenCache | None, progress: Progress) -> ReadOptions:
        """Return how the data are read."""
        text = self.options
        return ReadOptions(
            seq=seq,
            vocab_size=self.tokenizer.vocab_size,
            seed=self.recipe_options().seed,
            holdout=text.holdout if text.valid is None else 0,
            mask_prompt=not text.no_mask_prompt,
            keep_end=text.truncation_mode == "keep_end",
            packing=not text.no_packing,
            columns=columns_of(text.columns),
            bounds=Bounds(text.max_line, text.max_unpacked),
            separator=text.document_separator or "",
            store=store,
            progress=progress,
        )

    def read_source(self, path: str | None, how: ReadOptions) -> Dataset | PreferenceData:
        """Read one source of data. Raises DataError, also for tokens of another tokenizer."""
        if self.options.document_separator is not None:
            return jsonl.documents(path, self.tokenizer, how)
        if path is not None and (Path(path).is_dir() or Path(path).suffix in NO_TEXTS):
            if any(Path(path).glob("*.bin")) and has_tokenizer(Path(path)):
                self._check_shards(Path(path))
            return jsonl.read(path, self.tokenizer, how)
        return jsonl.long_text(path, self.tokenizer, how)

    def _check_shards(self, folder: Path) -> None:
        """Raise DataError for tokens of another tokenizer; theirs is beside them."""
        theirs = Tokenizer.of(folder)
        if theirs.tokens != self.tokenizer.tokens:
            raise DataError(
                f"{folder}: its tokens are those of the tokenizer beside them, with "
                f"{theirs.vocab_size:,} tokens; the model's has {self.tokenizer.vocab_size:,} or "
                f"others: tokenize the text again, or use --tokenizer {in_shell(folder)}"
            )

    def check_metric(self) -> None:
        """Read --questions. Raises ConfigError if --metric needs questions and none are named."""
        if self.options.questions is not None:
            questions = read_questions(str(self.options.questions))
            joint = self.options.question_delimiter
            self.asked = [Asked(question, self.tokenizer, joint) for question in questions]
            said = f"{counted(len(questions), 'question')}, joined to their choices"
            self.say("questions", f"{said} {delimited(questions, joint)}")
        elif self.options.question_delimiter is not None:
            raise ConfigError("--question-delimiter: it needs --questions: name a .jsonl file")
        elif lacking := set(self.metrics) & self.of_questions:
            raise ConfigError(
                f"--metric {lacking.pop()}: it needs --questions: name a .jsonl file with a "
                "question, its choices and the answer in each line"
            )

    def extras(self) -> Sequence[Any]:
        """Return what is measured in addition: questions, texts to compare with the teacher on."""
        if not isinstance(self.teacher, Teacher):  # a file has no probabilities of other texts
            return self.asked
        assert isinstance(self.shown, Dataset)  # preferences have no teacher
        texts = beside(self.shown.valid, self.t_seq, self.teacher.engine, TEACHER)
        return [*self.asked, *texts]

    def measure(self, batch: Any) -> Figures:
        """Return the figures of a batch, or of a question.

        If stop tokens have loss, the figures include their mean loss, and the mean loss of all
        other labels.
        """
        figures = measured(batch, self.recipe)
        if figures is not None:
            return figures
        loss = self.recipe.evaluate(batch)
        return {"loss": loss, **(self._of_ends(batch) if self._has_ends else {})}

    @property
    def measures_ends(self) -> bool:
        """Whether the loss of stop tokens can be measured: the tokenizer has stop tokens."""
        return bool(self.tokenizer.eog)

    @cached_property
    def _has_ends(self) -> bool:
        """Whether stop tokens have loss in the data held out."""
        return self.measures_ends and self._counts(self.valid())[ends.STOP] > 0

    def _counts(self, batches: Iterable[Any]) -> dict[str, int]:
        """Return the number of labels that are stop tokens, and of all other labels."""
        sums = ends.added(ends.sums(each.labels, self.tokenizer.eog) for each in batches)
        return {name: count for name, (_, count) in sums.items()}

    def _of_ends(self, batch: Any) -> dict[str, tuple[float, int]]:
        """Return the losses of the last evaluated batch: of stop tokens, and of the rest."""
        losses = self.recipe.label_losses()
        sums = ends.sums(batch.labels, self.tokenizer.eog, losses)
        return {name: each for name, each in sums.items() if each[1]}

    def _unlearned(self, result: Result) -> Iterator[str]:
        """Yield a warning, with advice, if the model does not learn stop tokens.

        If nothing is held out, training examples decide. Weights from before training have no
        warning.
        """
        if not result.best_iteration:
            return
        batches = list(self.valid())
        if not batches and isinstance(self.shown, Dataset):
            part = replace(self.shown, valid=self.shown.train)
            batches = list(part.valid_batches(self.recipe_options().t_batch, SHOWN_BATCHES))
        counts = self._counts(batches)
        has_ends = self.measures_ends and all(counts.values())
        means = self._means_of_ends(result, batches) if has_ends else None
        if means is not None and ends.unlearned(means, counts):
            ids = {int(id) for each in batches for id in np.unique(each.labels)}
            names = ", ".join(self.tokenizer.tokens[id] for id in sorted(ids & self.tokenizer.eog))
            stop, rest = means[ends.STOP], means[ends.REST]
            said = f"loss {stop:.2f} on stop tokens ({harmless(names, '')}), {rest:.2f} on the rest"
            yield fact("stop", f"{said}: the model does not learn where to end")
            yield fact("", self.advice_on_ends)

    def _means_of_ends(self, result: Result, batches: Sequence[Any]) -> dict[str, float] | None:
        """Return the losses of the best weights: from a report, or measured now.

        None: no report has them, and the run was interrupted.
        """
        names = (ends.STOP, ends.REST)
        for report in reversed(result.reports):
            told = report.figures or {}
            if report.iteration == result.best_iteration and f"val_{ends.STOP}" in told:
                return {name: told[f"val_{name}"] for name in names}
        if result.interrupted:
            return None
        losses = []
        for batch in batches:
            self.recipe.evaluate(batch)
            losses.append(self._of_ends(batch))
        return {name: total / count for name, (total, count) in ends.added(losses).items()}

    @property
    def advice_on_ends(self) -> str:
        """Advice for a model that does not learn stop tokens."""
        return "train longer (--steps), or with a higher --lr"

    def announce(self) -> None:
        """Print the model, and the teacher if there is one."""
        super().announce()
        if self.teacher is not None:
            named = f"the {self.teacher.k} likeliest tokens of {self.teacher.path}"
            share = f"its divergence is {self.options.teacher_weight:g} of the loss"
            print(fact("teacher", f"{harmless(named, '')}; {share}"))
            if written := self.options.lmbda:
                print(fact("", f"{written:g} of the batches have the student's own completions"))

    def notes(self) -> dict[str, Any]:
        """Add the notes about the data."""
        return {**super().notes(), "said": list(self.data.notes)}

    def _store(self) -> TokenCache | None:
        """Return the token cache if --cache is given or the data are large; None: no cache."""
        folder = self.options.cache
        if folder is None:
            folder = str(self.beside / TOKENS)
            if sum(_size(Path(path)) for path, _ in self._sources() if path) < CACHED:
                return None
        return TokenCache(str(folder), lambda word: print_line(f"toynn: {harmless(word, '')}"))

    def check(self) -> None:
        """Raise an error if a mapped file has changed since it was opened."""
        super().check()
        self.data.check_unchanged()

    def tables(self) -> dict[str, Mapping[str, Value]]:
        """Return config.toml's table of the data: name, SHA-256, number of tokens or examples."""
        data = self.data
        if isinstance(data, Mixture):
            return {"data": self._mixed(data)}
        text = data.source
        counts: dict[str, Value] = {"train": len(data.train), "valid": len(data.valid)}
        if text is None or text.sha256 is None:
            test = None if data.test is None else len(data.test)
            sha256 = digest(str(self.options.data))
            named = {"name": self.directory.word(self.options.data), "sha256": sha256}
            return {"data": {**named, **counts, "test": test}}
        whole: dict[str, Value] = {
            "name": self.directory.word(text.name),
            "bytes": text.bytes,
            "sha256": text.sha256,
        }
        return {"data": {**whole, **counts}}

    def _mixed(self, data: Mixture) -> dict[str, Value]:
        """Return config.toml's table of several sources, in lists."""
        parts = data.sources
        return {
            "name": ", ".join(map(self.directory.word, data.names)),
            "sources": self.directory.word(data.names),
            "shares": data.weights,
            "sha256": tuple(digest(str(path)) for path, _ in self._sources()),
            "train": tuple(len(part.train) for part in parts),
            "valid": tuple(len(part.valid) for part in parts),
        }

    @property
    def metrics(self) -> tuple[str, ...]:
        """The names of the metrics; the first selects the best weights."""
        return tuple(str(self.options.metric).split(","))

    @property
    def shown(self) -> Dataset | PreferenceData:
        """The data that samples during training use: the first source."""
        return self.parts[0][1]

    @property
    def parts(self) -> Sequence[tuple[str, Dataset | PreferenceData]]:
        """The sources of the data, each with its name; a single source has the name ""."""
        if isinstance(self.data, Mixture):
            return list(zip(self.data.names, self.data.sources, strict=True))
        return [("", self.data)]

    @property
    def packed(self) -> bool:
        """Whether batches are rows of packed examples, each example a segment."""
        return self.data.packed

    def all_options(self, **more: Any) -> RecipeOptions:
        """Return the recipe's options; needs the data, or ``t_seq`` in ``more``."""
        if "t_seq" not in more:
            of_data = {"t_seq": self.data.seq, "packed": self.packed}
            more = {**of_data, "label_losses": self.measures_ends, **more}
        return self.recipe_options(**more)

    def recipe_options(self, **more: Any) -> RecipeOptions:
        """Return the options to realize the recipe with; without --teacher there is no top k."""
        alone = {} if self.options.teacher is not None else {"teacher_top_k": 0}
        return super().recipe_options(**alone, **more)

    def realize(self) -> Engine[Any]:
        """Return the recipe, ready to step."""
        return self.realize_with(self.all_options())

    @abstractmethod
    def realize_with(self, options: RecipeOptions) -> Engine[Any]:
        """Return the recipe with these options, ready to step; the source is still open."""

    def batches(self) -> Any:
        """Return random windows, or examples in random order."""
        batches = self.data.batches(self.recipe_options().t_batch, self.recipe_options().seed)
        return taught_batches(batches, self)

    def per_epoch(self) -> float:
        """Return the number of batches that hold all examples once, or all tokens of a text."""
        return float(self.batches().per_epoch)

    def valid(self) -> Sequence[Any]:
        """Return batches of held-out windows or examples."""
        return self._valid

    @cached_property
    def _valid(self) -> Sequence[Any]:
        return self.data.valid_batches(self.recipe_options().t_batch, EVAL_BATCHES)

    def show(self, folder: RunFolder, result: Result) -> str:
        """Let the model continue the validation data; print and save what it writes."""
        is_late, texts = late(result), []
        for name, part in self.parts:
            prompt = self._prompt(part)
            ids = takewhile(lambda _: not is_late(), self._new(prompt, SAMPLE_TOKENS))
            texts.append(self.tokenizer.decode([*prompt, *ids], special=True))
            of = f" of {harmless(name, '')}" if name else ""
            which = "validation" if len(part.valid) else "training"
            what = f"{len(prompt)} tokens of the {which} data{of}, then the model's own"
            print(f"--- sample: {what} ---")
            print(harmless(texts[-1]))
            print("---")
        folder.write_sample("\n---\n".join(texts))
        return self.said_of(result)

    def sample(self) -> Iterator[str]:
        """Yield a continuation of the validation data, as the model writes it now."""
        stream = self.tokenizer.stream(special=True)
        prompt = self._prompt(self.shown)
        for id in chain(prompt, self._new(prompt, SAMPLE_ON_THE_WAY)):
            yield stream.push(id)
        yield stream.end()

    def _new(self, prompt: Sequence[int], count: int) -> Iterator[int]:
        """Yield the tokens that the model writes after a prompt."""
        seed, stop = self.recipe_options().seed, self.tokenizer.eog
        return generate(self.recipe, prompt, count, seed=seed, stop=stop)

    def _prompt(self, data: Dataset | PreferenceData) -> list[int]:
        """Return the first prompt of the validation data, or the beginning of its text.

        If nothing is held out, it comes from the training data.
        """
        if isinstance(data, PreferenceData):
            return data.prompt()
        valid = shown_part(data)
        if not isinstance(valid, Examples):
            return [int(id) for id in valid[:SAMPLE_PROMPT]]
        ids, labels = valid[0]
        before = int(np.argmax(labels != IGNORED))  # rows whose label is a token of the prompt
        return [int(id) for id in ids[: before + 1 if before else EXAMPLE_PROMPT]]

    @abstractmethod
    def said_of(self, result: Result) -> str:
        """Return what is printed about the best weights after their loss."""

    def epilogue(self, folder: RunFolder, result: Result) -> Iterator[str]:
        """Yield a warning if stop tokens are not learned, and the loss of the test examples."""
        yield from self._unlearned(result)
        total, rows = 0.0, 0
        for part in self.data.test_batches(self.recipe_options().t_batch):
            total += self.recipe.evaluate(part) * part.rows
            rows += part.rows
        if rows:
            self.check()
            yield f"test        loss {total / rows:.4f}, over {rows:,} tokens"


def shown_part(data: Dataset | PreferenceData) -> Any:
    """Return the held-out part; if it is empty, the training part."""
    return data.valid if len(data.valid) else data.train


def _size(data: Path) -> int:
    """Return the bytes of a file, or of all files in a folder; 0 if the path does not exist."""
    with suppress(OSError, ValueError, DataError):
        files = data.rglob("*") if data.is_dir() else files_of(data)
        return sum(file.stat().st_size for file in files if file.is_file())
    return 0
