"""The options of jobs on an encoder: ``toynn train classify``, ``embed`` and ``rerank``."""

from argparse import ArgumentTypeError
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from toynn.data.problems import PROBLEMS, TooLong
from toynn.jobs.lora_options import AdapterFields
from toynn.jobs.options import MODEL, OPTIMIZATION, SAVING, JobOptions, StrPath
from toynn.jobs.paths import data_name, local_data, model_file, model_name
from toynn.jobs.text_options import NAMED, RowOptions
from toynn.options import Decay, RecipeOptions, names_of, option, real, whole

MOST_STEPS = 500  # between evaluations, unless it is said
BALANCED = "balanced"
METRICS = ("loss", "accuracy", "macro-f1", "micro-f1", "matthews", "spearman", "entity-f1")


@dataclass(kw_only=True, repr=False, eq=False)
class _Encoder(RowOptions):
    """The model, its texts, and what of it is trained."""

    GROUP: ClassVar[str] = MODEL

    model: StrPath = option(
        "encoder to start from: a Hugging Face or sentence-transformers folder, a GGUF file, a run "
        "folder or hf:OWNER/NAME",
        also="-m",
        read=model_name,
        fetch=model_file,
        metavar="PATH",
        hashed=True,
    )
    data: str = option(
        "texts: .csv, .tsv, .jsonl, .parquet, .arrow, a folder with train.csv, or "
        "hf:OWNER/NAME[:SPLIT]",
        read=data_name,
        fetch=local_data,
        metavar="PATH",
        once="name one file, or a folder with train and valid files",
    )
    method: Literal["full", "lora", "head"] = option(
        "what is trained: all weights (full), adapters (lora), or the head alone", "full"
    )
    seq: int | None = option(
        "most tokens of a text (default: what the model can read)",
        None,
        also="--max-seq-length",
        read=whole(3),
        memory="smaller",
    )
    too_long: TooLong = option("cut, drop or refuse texts longer than --seq", "cut")


@dataclass(kw_only=True, repr=False, eq=False)
class EncoderOptions(JobOptions, AdapterFields, _Encoder):
    """The options of a job on an encoder."""

    GROUP: ClassVar[str] = OPTIMIZATION

    columns: str | None = option("map fields to columns of the data: text=review,label=stars", None)
    steps: int = option("number of weight updates (default: those of --epochs)", 1500)
    batch: int = option("texts per step", 32)
    epochs: float | None = option("passes through the data, unless --steps are given", 3.0)
    lr: float | None = option(  # type: ignore[assignment]
        "peak learning rate (default: 2e-5; 2e-4 of lora; 1e-3 of head)", None
    )
    lr_schedule: Literal["cosine", "linear", "wsd", "constant"] = "linear"
    min_lr_ratio: float = 0.0
    weight_decay: float = 0.01
    decay: Decay = option(
        "apply --weight-decay to all weights or to matrices only", "matrices", of=RecipeOptions
    )
    eval_every: int | None = option(  # type: ignore[assignment]
        f"steps between evaluations; 0: none (default: an epoch, at most {MOST_STEPS})", None
    )
    save_every: int | None = option(  # type: ignore[assignment]
        "steps between checkpoints; 0: only when a signal stops the run (default: --eval-every)",
        None,
    )


def names_of_classes(text: str) -> str:
    """Return names between commas, each once. Raises ArgumentTypeError."""
    names = text.split(",")
    if not all(names) or len(set(names)) < len(names):
        raise ArgumentTypeError(f"must be names with commas between them, each once; got {text!r}")
    return text


def class_weights(text: str) -> str:
    """Return "balanced", or NAME=WEIGHT with commas between. Raises ArgumentTypeError."""
    for pair in text.split(",") if text != BALANCED else ():
        name, sign, weight = pair.rpartition("=")
        if not name or not sign:
            raise ArgumentTypeError(f"must be balanced, or NAME=WEIGHT,...; got {text!r}")
        real(0, above=True)(weight)
    return text


def _best_by(metrics: Sequence[str], default: str, **more: Any) -> Any:
    """Return the option of the metrics that choose the best weights; the data have the default."""
    said = "metric that selects the best weights; more after commas are only reported: "
    said += f"{', '.join(metrics)} (default: {default})"
    return option(said, None, read=names_of(metrics), **more)


@dataclass(kw_only=True, repr=False, eq=False)
class ClassifyOptions(EncoderOptions):
    """The options of ``toynn train classify``."""

    GROUP: ClassVar[str] = MODEL

    problem: Literal["auto", *PROBLEMS] = option(  # type: ignore[valid-type]
        "what labels are: a class of each text, several, a number, or classes of words (tokens); "
        "auto: as the first row has it, never a number",
        "auto",
    )
    labels: str | None = option(
        "names of the classes in their order (default: the model's, or the order of first sight)",
        None,
        read=names_of_classes,
        metavar="NAMES",
    )
    separator: str | None = option(
        "TEXT between several classes of one text (default: lists)", None, read=str, metavar="TEXT"
    )
    class_weights: str | None = option(
        "weights of classes in the loss: balanced (by their number), or NAME=WEIGHT,...",
        None,
        read=class_weights,
        metavar="balanced|NAME=WEIGHT,...",
    )
    metric: str | Sequence[str] | None = _best_by(  # type: ignore[assignment]
        METRICS, "macro-f1; loss of numbers; entity-f1 of tokens"
    )
    label_smoothing: float = option(
        "spread this share of each label over all classes", 0.0, read=real(0, 0.99)
    )
    teacher: StrPath | None = option(
        "also learn from a larger classifier with the same classes: a folder, run folder or GGUF "
        "file",
        None,
        **NAMED,
    )
    teacher_weight: float = option(
        "share of the teacher's probabilities in the labels", 0.5, read=real(0, 1)
    )


EMBED_METRICS = ("loss", "spearman", "ndcg", "mrr", "recall")
RERANK_METRICS = ("loss", "accuracy", "spearman")
#: sentence-transformers' names of losses.
LOSSES = {
    "infonce": "infonce",
    "mnrl": "infonce",
    "multiplenegativesranking": "infonce",
    "cosent": "cosent",
    "triplet": "triplet",
}


def loss_name(text: str) -> str:
    """Return a loss as it is typed, if it is one. Raises ArgumentTypeError."""
    loss_of(text)
    return text


def loss_of(text: str) -> tuple[str, bool]:
    """Return toynn's name of a loss, and whether the given name says that it is cached."""
    plain = text.lower().removesuffix("loss")
    if (name := plain.removeprefix("cached")) not in LOSSES:
        raise ArgumentTypeError(
            f"must be infonce (MultipleNegativesRankingLoss), cosent or triplet; got {text!r}"
        )
    return LOSSES[name], name != plain


def numbers(text: str) -> str:
    """Return whole numbers above 0 between commas. Raises ArgumentTypeError."""
    for each in text.split(","):
        whole(1)(each)
    return text


def prompts_of(text: str | None) -> dict[str, str]:
    """Return the prompt of each column from NAME=TEXT,...; spaces belong to the text."""
    parts = (part.partition("=") for part in (text or "").split(",") if part)
    return {name.strip(): prompt for name, _, prompt in parts}


def column_prompts(text: str) -> str:
    """Return NAME=TEXT,... if it is well-formed. Raises ArgumentTypeError."""
    from toynn.data.pairs import FIELDS

    if unknown := [name for name in prompts_of(text) if name not in FIELDS]:
        raise ArgumentTypeError(f"must be COLUMN=TEXT, separated by commas; got {unknown[0]!r}")
    return text


@dataclass(kw_only=True, repr=False, eq=False)
class EmbedOptions(EncoderOptions):
    """The options of ``toynn train embed``."""

    GROUP: ClassVar[str] = OPTIMIZATION

    batch: int = option("rows per step; the other rows' texts are the wrong answers", 32)
    loss: str | None = option(
        "infonce (MultipleNegativesRankingLoss, mnrl, Cached...), cosent (CoSENTLoss) or triplet "
        "(TripletLoss) (default: cosent of scored rows, else infonce)",
        None,
        read=loss_name,
        metavar="NAME",
    )
    mini_batch: int = option(
        "embed N texts at a time, twice, so that --batch may be thousands (GradCache); 0: all",
        0,
        read=whole(0),
        memory="smaller",
    )
    scale: float = option("factor of cosines in infonce and cosent", 20.0, read=real(0, above=True))
    symmetric: bool = option("infonce: positives also look for their anchors", False)
    teacher: StrPath | None = option(
        "infonce: also learn which texts another model finds alike: a folder, run folder or GGUF "
        "file",
        None,
        **NAMED,
    )
    teacher_weight: float = option(
        "share of the teacher's likenesses in the labels", 0.5, read=real(0, 1)
    )
    margin: float = option(
        "triplet: how much further negatives should be than positives", 5.0, read=real(0)
    )
    dims: str | None = option(
        "add up the losses of the first N numbers of vectors, for each of these (Matryoshka)",
        None,
        read=numbers,
        metavar="N,N,...",
    )
    metric: str | Sequence[str] | None = _best_by(  # type: ignore[assignment]
        EMBED_METRICS, "spearman of scored rows, else ndcg", group=SAVING
    )
    prompts: str | None = option(
        "texts before those of a column: 'anchor=query: ,positive=passage: '",
        None,
        group=MODEL,
        read=column_prompts,
        metavar="COLUMN=TEXT,...",
    )


@dataclass(kw_only=True, repr=False, eq=False)
class RerankOptions(EncoderOptions):
    """The options of ``toynn train rerank``."""

    GROUP: ClassVar[str] = SAVING

    metric: str | Sequence[str] | None = _best_by(  # type: ignore[assignment]
        RERANK_METRICS, "loss"
    )
