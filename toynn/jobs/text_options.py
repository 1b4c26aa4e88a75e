"""The options of a job on texts: how data are read, and which part validates; its teacher."""

from argparse import ArgumentTypeError
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from toynn.data.bounds import FEW, LONGEST
from toynn.jobs.options import MODEL, OPTIMIZATION, SAVING, JobOptions, StrPath, best_by
from toynn.jobs.paths import data_name, local_data, model_file, model_name
from toynn.jobs.weighted import sources
from toynn.options import RecipeOptions, option, options_of, real, whole
from toynn.train.options import LoopOptions

SAMPLE_ON_THE_WAY = 64
WINDOW = 512  # tokens on which `toynn eval` measures, the default of llama-perplexity
HUGE = 2**62  # bytes: more than any bound
#: Data of at least this many bytes have their tokens cached on disk, beside the run's folder.
CACHED = 64_000_000
TOKENS = "tokens"
OF_QUESTIONS = frozenset(["accuracy", "accuracy-normalized"])
METRICS = ("loss", "perplexity", *sorted(OF_QUESTIONS))
DATA = (
    "text, .jsonl, table, tokens (.bin), a folder of texts or with train.jsonl, or "
    "hf:OWNER/NAME[:SPLIT]; several are mixed by weight"
)
#: How an option that names a teacher is read.
NAMED: Any = {"read": model_name, "fetch": model_file, "metavar": "FILE", "hashed": True}


def delimiter(text: str) -> str:
    r"""Return a delimiter with typed \n and \t replaced by a line break and a tab."""
    return text.replace("\\n", "\n").replace("\\t", "\t")


def separator(text: str) -> str:
    """Return a delimiter that is not empty. Raises ArgumentTypeError."""
    if not text:
        raise ArgumentTypeError("expected a text; got an empty one")
    return delimiter(text)


def columns_of(text: str | None) -> dict[str, str]:
    """Return the column of each field, from NEW=OLD,..."""
    pairs = [pair.partition("=") for pair in (text or "").split(",") if pair]
    return {new.strip(): old.strip() for new, _, old in pairs}


def column_names(text: str) -> str:
    """Return NEW=OLD,... if it is well-formed. Raises ArgumentTypeError."""
    columns = columns_of(text)
    if not columns or not all(columns) or not all(columns.values()):
        raise ArgumentTypeError(f"must be NEW=OLD, several separated by commas; got {text!r}")
    return text


def share_or_count(text: str) -> float:
    """Parse a share below 1, or a whole number. Raises ArgumentTypeError."""
    try:
        number = float(text)
    except ValueError:
        number = -1.0
    if not (0 <= number < 1 or (1 <= number < 2**31 and number.is_integer())):
        raise ArgumentTypeError(
            f"must be a share below 1, a whole number of rows, or 0 for none; got {text!r}"
        )
    return number if number < 1 else int(number)


def data_names(texts: str | Sequence[str]) -> str | tuple[str, ...]:
    """Return paths of data as typed, perhaps with weights.

    Raises ArgumentTypeError for a malformed hub name, ConfigError for wrong weights.
    """
    return sources([data_name(text) for text in ([texts] if isinstance(texts, str) else texts)])


@dataclass(kw_only=True, repr=False, eq=False)
class RowOptions:
    """How rows of data are read, and which of them validate."""

    GROUP: ClassVar[str] = MODEL

    columns: str | None = option(
        "map field names to columns of the data: prompt=question,completion=answer",
        None,
        read=column_names,
        metavar="NEW=OLD,...",
    )
    max_line: int = option(
        "most bytes of a line of data",
        LONGEST,
        read=whole(1, HUGE),
        metavar="BYTES",
        compared=False,
    )
    max_unpacked: int | None = option(
        "most bytes that a compressed file may hold (default: 100 times its size, at least 1 GiB)",
        None,
        read=whole(1, HUGE),
        metavar="BYTES",
        compared=False,
    )
    valid: StrPath | None = option(
        "validate on this file, or hf:OWNER/NAME:SPLIT, instead of rows of --data",
        None,
        group=SAVING,
        read=data_name,
        fetch=local_data,
        metavar="FILE",
        hashed=True,
    )
    holdout: float | None = option(
        "hold out a share or N rows (tokens of a text) for validation; 0: none (default: a "
        f"tenth, or none of fewer than {FEW} rows)",
        None,
        group=SAVING,
        read=share_or_count,
        metavar="SHARE|N|0",
    )


@dataclass(kw_only=True, repr=False, eq=False)
class WritingOptions:
    """How texts become tokens, and how often the model writes some."""

    GROUP: ClassVar[str] = MODEL

    sample_every: int = option(
        f"steps between samples of {SAMPLE_ON_THE_WAY} tokens in samples.jsonl; 0: one at the end",
        0,
        group=SAVING,
        of=LoopOptions,
    )
    tokenizer: StrPath | None = option(
        "use the tokenizer of a GGUF file or Hugging Face folder (default: the model's own)",
        None,
        read=model_name,
        fetch=model_file,
        metavar="FILE",
        hashed=True,
    )


@dataclass(kw_only=True, repr=False, eq=False)
class TextOptions(RowOptions, WritingOptions):
    """The texts or examples of a job, and how they are read."""

    GROUP: ClassVar[str] = MODEL

    data: str | tuple[str, ...] | None = option(
        f"{DATA} (default: the language reference that ships with Python)",
        None,
        metavar="PATH[:WEIGHT]",
        read=data_names,
        fetch=local_data,
        once="name several after one flag: --data a.jsonl b.jsonl",
    )
    seq: int = option(
        "tokens per window, and context of a new model",
        128,
        also="--max-seq-length",
        read=whole(1),
        memory="smaller",
    )
    no_mask_prompt: bool = option(
        "train on prompts and user messages too, not only on completions", False
    )
    no_packing: bool = option("put one example in a row instead of packing as many as fit", False)
    truncation_mode: Literal["keep_start", "keep_end"] = option(
        "keep the start or the end of examples longer than --seq", "keep_start"
    )
    document_separator: str | None = option(
        "split a text into documents at TEXT; \\n and \\t are read; no window holds two documents "
        "(default: one document)",
        None,
        read=separator,
        metavar="TEXT",
    )
    cache: StrPath | None = option(
        "folder for memory-mapped tokens, which later runs read "
        f"(default: {TOKENS} beside the run's folder, for data of {CACHED // 10**6} MB and more)",
        None,
        metavar="DIR",
        compared=False,
    )
    questions: StrPath | None = option(
        "multiple-choice questions (.jsonl) whose accuracy each evaluation reports",
        None,
        group=SAVING,
        metavar="FILE",
        hashed=True,
    )
    question_delimiter: str | None = option(
        "put TEXT between a question and its choices; \\n and \\t are read (default: a space, or "
        "nothing after whitespace)",
        None,
        group=SAVING,
        read=delimiter,
        metavar="TEXT",
    )


#: --tokenizer where a model is read.
TOKENIZER = options_of(TextOptions)["tokenizer"]


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
        "divide logits of both models by this, in the divergence and to write by --lmbda",
        1.0,
        of=RecipeOptions,
    )
    teacher_top_k: int = option(
        "how many likely tokens the teacher names; all others are one",
        64,
        of=RecipeOptions,
        read=whole(1),
    )
    lmbda: float = option(
        "share of batches whose completions the student writes (GKD)", 0.0, read=real(0, 1)
    )
    max_completion_length: int = option(
        "most tokens of a completion that the student writes", 128, read=whole(1)
    )


@dataclass(kw_only=True, repr=False, eq=False)
class TextJobOptions(TeacherOptions, JobOptions, TextOptions):
    """The options of a job on texts."""

    metric: str | Sequence[str] = best_by(*METRICS)
