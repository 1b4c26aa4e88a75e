"""Learn from a teacher: its options, and batches that know what it says of their tokens."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

from toynn import engines
from toynn.data.batch import Batch
from toynn.data.jsonl import Dataset
from toynn.data.taught import TaughtFile
from toynn.engines.teacher import Teacher
from toynn.errors import ConfigError
from toynn.formats import bases
from toynn.formats.tokenizer import Tokenizer
from toynn.jobs.options import OPTIMIZATION, StrPath
from toynn.jobs.paths import model_file, model_name, text_model
from toynn.options import RecipeOptions, option, options_of, real, whole
from toynn.system.printing import harmless

#: How an option that names a teacher is read.
NAMED: Any = {"read": model_name, "fetch": model_file, "metavar": "FILE", "hashed": True}


@dataclass(kw_only=True, repr=False, eq=False)
class TeacherOptions:
    """A teacher, and how much of it is learned."""

    GROUP: ClassVar[str] = OPTIMIZATION

    teacher: StrPath | None = option(
        "also learn from a larger model with the same tokenizer: a GGUF file, Hugging Face folder, "
        "or file of `toynn teach`",
        None,
        **NAMED,
    )
    teacher_weight: float = option(
        "share of the divergence from the teacher in the loss; labels have the rest",
        0.5,
        read=real(0, 1),
    )
    teacher_beta: float = option(
        "divergence: 0 forward KL, 1 reverse KL, else generalized JSD", 0.0, of=RecipeOptions
    )
    teacher_temperature: float = option(
        "divide logits of both models by this in the divergence", 1.0, of=RecipeOptions
    )
    teacher_top_k: int = option(
        "how many likely tokens the teacher names; all others are one",
        64,
        of=RecipeOptions,
        read=whole(1),
    )


def check_alone(options: Any) -> None:
    """Raise ConfigError for an option of a teacher where none is named."""
    for name, each in options_of(type(options)).items():
        if not name.startswith("teacher_") or options.teacher is not None:
            continue
        if getattr(options, name) != each.default:
            raise ConfigError(f"{each.flag}: it needs --teacher: name a model")


def written(job: TeacherOptions, tokenizer: Tokenizer, data: Any) -> TaughtFile:
    """Return a file of `toynn teach` as the teacher of a job's options, and take its top k.

    Raises ConfigError for another temperature or top k, and for several sources of data; DataError
    for a file of other data.
    """
    if not isinstance(data, Dataset):
        raise ConfigError(f"--teacher {job.teacher}: it belongs to one source of data; got several")
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
