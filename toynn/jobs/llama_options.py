"""The options of from-scratch and warm-start."""

from argparse import SUPPRESS, ArgumentTypeError
from dataclasses import dataclass
from typing import Literal, NoReturn

from toynn.jobs.model_options import ModelOptions
from toynn.jobs.options import StrPath
from toynn.jobs.paths import model_file, model_name
from toynn.models.architectures import LLAMAS
from toynn.options import RecipeOptions, WeightType, option, whole


def _arch(name: str) -> str:
    """Return the name of an architecture; those of other packages are known once registered."""
    from toynn.engines import LlamaSeqEngine

    if name not in LlamaSeqEngine.architectures:
        known = ", ".join(LlamaSeqEngine.architectures)
        raise ArgumentTypeError(f"must be one of {known}; got {name!r}")
    return name


@dataclass(kw_only=True, repr=False, eq=False)
class LlamaOptions(ModelOptions):
    """The options of a Llama-like model."""

    arch: str = option("model architecture", LLAMAS[0], read=_arch, words=LLAMAS, source="own")
    kv_heads: int | None = option(
        "number of key and value heads; must divide --heads (default: --heads)",
        None,
        read=whole(1),
        source="own",
    )
    d_ff: int | None = option(
        "width of the feed-forward layers (default: 8/3 of --d-model, a multiple of 32)",
        None,
        read=whole(1),
        source="own",
    )
    weight_dtype: WeightType = option(
        "round weights to this type before a product", "f32", of=RecipeOptions
    )
    qkv_bias: bool = option(
        "add biases to the q, k and v projections", False, of=RecipeOptions, source="own"
    )
    init_scale: float = option(
        "scale of the initial block matrices", 1.0, of=RecipeOptions, source="own"
    )


@dataclass(kw_only=True, repr=False, eq=False)
class FromScratchOptions(LlamaOptions):
    """The options of ``toynn train from-scratch``."""

    untied: bool = option(
        "give the model an output matrix of its own", False, of=RecipeOptions, source="own"
    )


def _no_start(path: str) -> NoReturn:
    """Refuse --init-from where the model starts from a donor."""
    raise ArgumentTypeError(
        "a warm start takes only a donor's embeddings (--donor); all other weights are random. "
        f"`toynn train from-scratch --init-from {path}` continues training all weights of a model, "
        "including one of a warm start"
    )


@dataclass(kw_only=True, repr=False, eq=False)
class WarmStartOptions(LlamaOptions):
    """The options of ``toynn train warm-start``."""

    tokenizer: StrPath | None = option(
        "use the tokenizer of a GGUF file or Hugging Face folder (default: bytes)", None
    )
    init_from: StrPath | None = option(SUPPRESS, None, read=_no_start)
    donor: StrPath = option(
        "GGUF file whose token embeddings the model starts from",
        read=model_name,
        fetch=model_file,
        metavar="FILE",
        hashed=True,
    )
    init: Literal["scratch", "donor", "pca"] = option(
        "start from: donor, its embeddings and a random projection; pca, its embeddings and their "
        "PCA; scratch, random embeddings",
        "donor",
    )
