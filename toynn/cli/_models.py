"""The flags of a model, its adapters and its tokenizer, and the model that they name."""

from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from toynn.cli._adapters import add_adapters, combined
from toynn.cli._flags import add
from toynn.errors import ConfigError
from toynn.jobs.adapted import Origin, origin_of
from toynn.jobs.paths import local_path, model_file, path_or_name, text_model
from toynn.jobs.text_options import TOKENIZER
from toynn.options import RecipeOptions

if TYPE_CHECKING:
    from toynn.engines import SequenceEngine
    from toynn.formats.tokenizer import Tokenizer

MODEL = (
    "model: a .gguf file, a run folder, a Hugging Face folder or hf:OWNER/NAME (default: the base "
    "of --adapter's run)"
)


def add_model(parser: ArgumentParser) -> None:
    """Add --model, --adapter and --tokenizer."""
    parser.add_argument("-m", "--model", type=path_or_name, metavar="PATH", help=MODEL)
    add_adapters(parser)
    add(parser, TOKENIZER)


def check_named(arguments: Namespace) -> None:
    """Raise ConfigError if flags name neither a model nor an adapter."""
    if arguments.model is None and not arguments.adapter:
        raise ConfigError(
            "--model: name the model; or name by --adapter a run that was trained over it"
        )


def origin(arguments: Namespace) -> Origin:
    """Return the model and the tokenizer that flags name, or that the adapters' runs name.

    Files on the hub are downloaded. Raises ConfigError if nothing names a model, or if the adapters
    belong to several models.
    """
    check_named(arguments)
    model, tokenizer = arguments.model, arguments.tokenizer
    if tokenizer is not None:
        tokenizer = model_file(tokenizer)
    if model is not None:
        return Origin(str(local_path(model)), tokenizer)
    origins = {each.path: origin_of(each.path) for each in arguments.adapter}
    first, *others = origins.items()
    for path, other in others:
        if Path(other.model).resolve() != Path(first[1].model).resolve():
            raise ConfigError(
                f"--adapter {path}: it was trained over {other.model}, but {first[0]} was trained "
                f"over {first[1].model}: name one model by --model"
            )
    return first[1]._replace(**{} if tokenizer is None else {"tokenizer": tokenizer})


def opened(arguments: Namespace, options: RecipeOptions) -> "tuple[Tokenizer, SequenceEngine[Any]]":
    """Return the tokenizer and the model with its adapters. Raises the errors of ``origin``."""
    from toynn import engines
    from toynn.formats import bases
    from toynn.formats.sentences import MODULES
    from toynn.formats.tokenizer import Tokenizer
    from toynn.models import ENCODERS

    model, named = origin(arguments)
    if not arguments.adapter and (Path(model) / MODULES).exists():
        raise ConfigError(f"--model {model}: it makes vectors of texts: use `toynn embed`")
    with bases.open(text_model(Path(model))) as file:
        if arguments.adapter and file.architecture in ENCODERS:
            raise ConfigError(
                f"--adapter {arguments.adapter[0].path}: {model} is an encoder, whose runs are "
                "whole models: name the run by --model"
            )
        tokenizer = Tokenizer.for_model(file, named)
        adapter = combined(arguments.adapter, file, strict=arguments.strict)
        return tokenizer, engines.frozen(file, adapter, arguments.backend, options)
