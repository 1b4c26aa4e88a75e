"""The options of a job that trains all weights of a model of text, as gpt2 has them."""

from dataclasses import dataclass
from typing import ClassVar

from toynn.jobs.options import MODEL, NewModelOptions, StrPath
from toynn.jobs.paths import model_file, model_name
from toynn.jobs.text_options import TextJobOptions
from toynn.options import option, whole


@dataclass(kw_only=True, repr=False, eq=False)
class ModelOptions(NewModelOptions, TextJobOptions):
    """The options of a job that trains all weights of a model of text."""

    GROUP: ClassVar[str] = MODEL

    batch: int = option("windows of text per step", 8)
    depth: int | None = option(
        "one dial for a new model: N blocks and heads, a width of 32 N, and the --lr and --steps "
        "that suit them; each can be given, too",
        None,
        read=whole(1, 1000),
        source="own",
        in_config=False,
    )
    tokenizer: StrPath | None = option(
        "use the tokenizer of a GGUF file or Hugging Face folder (default: bytes, or the tokenizer "
        "of --init-from)",
        None,
    )
    init_from: StrPath | None = option(
        "start from the weights of a GGUF file or Hugging Face folder",
        None,
        read=model_name,
        fetch=model_file,
        metavar="PATH",
        hashed=True,
    )
