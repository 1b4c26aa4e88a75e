"""Learn from a teacher: its options, and batches that know what it says of their tokens."""

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from toynn import engines
from toynn.data.batch import Batch
from toynn.data.examples import Example, Examples, joined
from toynn.data.jsonl import Dataset
from toynn.data.taught import TaughtFile
from toynn.engines.teacher import Teacher
from toynn.errors import ConfigError
from toynn.formats import bases
from toynn.formats.tokenizer import Tokenizer
from toynn.generation import rollouts
from toynn.jobs.options import StrPath
from toynn.jobs.paths import text_model
from toynn.jobs.text_options import TeacherOptions
from toynn.options import RecipeOptions, options_of
from toynn.system.printing import harmless


def check_alone(options: Any) -> None:
    """Raise ConfigError for an option that needs --teacher or --lmbda, without it."""
    for name, each in options_of(type(options)).items():
        needed = ""
        if options.teacher is None and (name.startswith("teacher_") or name == "lmbda"):
            needed = "--teacher: name a model"
        elif name == "max_completion_length" and not getattr(options, "lmbda", 1):
            needed = "--lmbda above 0"
        if needed and getattr(options, name) != each.default:
            raise ConfigError(f"{each.flag}: it needs {needed}")


def written(job: TeacherOptions, tokenizer: Tokenizer, data: Any) -> TaughtFile:
    """Return a file of `toynn teach` as the teacher of a job's options, and take its top k.

    Raises ConfigError for another temperature or top k, and for several sources of data; DataError
    for a file of other data.
    """
    if not isinstance(data, Dataset):
        raise ConfigError(f"--teacher {job.teacher}: it belongs to one source of data; got several")
    if job.lmbda:
        raise ConfigError(
            f"--lmbda {job.lmbda:g}: a file of `toynn teach` has no words for what the student "
            "writes: name the model as --teacher"
        )
    path, train = str(job.teacher), data.train
    file: TaughtFile = TaughtFile.opened(path, train, tokenizer.tokens, job.teacher_weight)
    given, wanted = file.facts["temperature"], job.teacher_temperature
    if given != wanted:
        raise ConfigError(
            f"--teacher-temperature {wanted:g}: {path} was written at {given:g}: run `toynn teach "
            f"--temperature {wanted:g}`"
        )
    if job.teacher_top_k not in (file.k, options_of(TeacherOptions)["teacher_top_k"].default):
        raise ConfigError(f"--teacher-top-k {job.teacher_top_k}: {path} has {file.k}")
    job.teacher_top_k = file.k
    return file


def opened(
    name: StrPath,
    tokenizer: Tokenizer,
    student: RecipeOptions,
    k: int,
    temperature: float,
    weight: float = 1.0,
) -> Teacher:
    """Return the model of a name as the teacher of a student that has these options.

    Raises ConfigError for another tokenizer and for a context that is too short, and the file's
    error for no model.
    """
    path = text_model(Path(str(name)), "--teacher")
    same = ("t_seq", "t_batch", "precision", "n_threads")
    options = RecipeOptions(packed=True, **{each: getattr(student, each) for each in same})
    with bases.open(path, check=False) as file:
        theirs, ours = Tokenizer.for_model(file).tokens, tokenizer.tokens
        if len(theirs) != len(ours):
            said = f"it has {len(theirs):,} tokens, the model to train has {len(ours):,}"
        else:
            pairs = enumerate(zip(theirs, ours, strict=True))
            wrong = next(((id, *pair) for id, pair in pairs if pair[0] != pair[1]), None)
            said = "token {} is {!r}, in the model to train {!r}".format(*wrong) if wrong else ""
        if said:
            raise ConfigError(
                f"--teacher {path}: {harmless(said, '')}: a teacher needs the same tokenizer"
            )
        context = file.require(f"{file.architecture}.context_length", int)
        if options.t_seq > context:
            raise ConfigError(
                f"--teacher {path}: expected room for the {options.t_seq} tokens of a row; its "
                f"context is {context} tokens"
            )
        engine = engines.frozen(file, options=options)
    return Teacher(engine, len(ours), k, temperature, weight)


class TaughtBatches(Iterator[Batch]):
    """Batches of a source, each with a teacher; a position in them is one in the source."""

    def __init__(self, source: Any, teacher: Callable[[Batch], Any]) -> None:
        self._source, self._teacher = source, teacher
        self.per_epoch, self.examples = source.per_epoch, source.examples

    def __next__(self) -> Batch:
        batch: Batch = next(self._source)
        return replace(batch, teacher=self._teacher)

    @property
    def state(self) -> Any:
        """The source's position: set it again, and the same batches follow."""
        return self._source.state

    @state.setter
    def state(self, state: Any) -> None:
        self._source.state = state


class OnPolicyBatches(TaughtBatches):
    """Batches of examples; of a share of them, the student writes the completions: GKD's lmbda.

    The source's position and its seed decide whether a batch is one of them. It is written when a
    step trains on it, by the weights of this moment. It has the batch's first prompts, as many as
    fit with the longest completions, and no labels: the divergence is the whole loss. A batch whose
    prompts all fill the context stays as it is.

    Raises ConfigError for a job whose data have no prompts.
    """

    def __init__(self, source: Any, job: Any) -> None:
        super().__init__(source, job.teacher)
        self._job = job
        for name, data in job.parts:
            if not (isinstance(data.train, Examples) and data.train.prompted):
                raise ConfigError(
                    f"--lmbda {job.options.lmbda:g}: expected rows of prompt and completion, or of "
                    "messages, without --no-mask-prompt; got a text, or examples without a prompt"
                    + (name and f", from {name}")
                )

    def __next__(self) -> Batch:
        random = np.random.default_rng([*json.dumps(self._source.state).encode()])
        drawn, seed = random.random() < self._job.options.lmbda, int(random.integers(2**62))
        return replace(
            super().__next__(),
            writer=partial(self._written, seed) if drawn else None,
            figures={"teacher/on_policy": (float(drawn), 1.0)},
        )

    def _written(self, seed: int, batch: Batch) -> Batch:
        job, student, stop = self._job, self._job.recipe, self._job.tokenizer.eog
        starts = np.flatnonzero(batch.segments == np.arange(batch.tokens))
        asked, room = list[tuple[list[int], int]](), batch.room
        for begin, end in pairwise([*starts.tolist(), batch.tokens]):
            prompt = Example(batch.inputs[begin:end], batch.labels[begin:end]).prompt
            most = min(job.options.max_completion_length, job.t_seq + 1 - len(prompt))
            room -= len(prompt) + most - 1
            if room >= 0 and len(prompt) < student.context:
                asked.append((prompt, most))
        if not asked:
            return replace(batch, writer=None)
        found = rollouts(
            student,
            [prompt for prompt, _ in asked],
            max_tokens=max(most for _, most in asked),
            stop=stop,
            seed=seed,
            temperature=job.options.teacher_temperature,
        )
        told = [(p, each.tokens[:most]) for (p, most), each in zip(asked, found, strict=True)]
        cut = sum(tokens[-1] not in stop for _, tokens in told)
        count = float(len(told))
        return replace(
            joined((Example.completed(*each) for each in told), batch.room),
            teacher=lambda written: self._teacher(written)._replace(weight=1.0),
            figures={
                **batch.figures,
                "samples/length": (float(sum(len(tokens) for _, tokens in told)), count),
                "samples/cut": (float(cut), count),
            },
        )


def taught_batches(source: Any, job: Any) -> Any:
    """Return a job's batches with its teacher, if it has one."""
    if job.teacher is None:
        return source
    return OnPolicyBatches(source, job) if job.options.lmbda else TaughtBatches(source, job.teacher)
