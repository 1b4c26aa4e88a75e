"""The recipes of ``toynn train``: what each is called, takes and makes."""

from argparse import SUPPRESS, ArgumentParser, ArgumentTypeError, Namespace
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NoReturn

from toynn.adamw import AdamW
from toynn.cli._numbers import real, whole
from toynn.cli._paths import model_file
from toynn.engines.gpt2 import GPT2Config
from toynn.engines.llama import LlamaConfig
from toynn.errors import ConfigError
from toynn.formats.tokenizer import ByteTokenizer, Tokenizer
from toynn.options import WEIGHT_DTYPES, RecipeOptions
from toynn.recipes import GPT2, FromScratch, WarmStart

__all__ = ["FRESH", "MODELS", "SHAPE", "Model", "default_d_ff", "tokenizer_of"]

#: Arguments that say the model's shape: config.toml has them as the model's configuration.
SHAPE = ("vocab", "d_model", "layers", "heads", "kv_heads", "d_ff")
#: Arguments that --init-from leaves no choice about, and their defaults without it.
FRESH = {
    "d_model": 128,
    "layers": 4,
    "heads": 4,
    "kv_heads": None,
    "d_ff": None,
    "init_scale": 1.0,
    "untied": False,
    "qkv_bias": False,
}


def _realize(recipe: Any, arguments: Namespace, config: Any, options: RecipeOptions) -> None:
    recipe.realize(config, options)


@dataclass(frozen=True)
class Model:
    """A recipe on the command line, beside what all of them share."""

    help: str
    recipe: Callable[[], Any]
    shape: Callable[[Namespace], Any]
    optimizer: Callable[[], AdamW]
    add_arguments: Callable[[ArgumentParser], None]
    options: tuple[str, ...] = ()  # of RecipeOptions, which are arguments
    start: Callable[[Any, Namespace, Any, RecipeOptions], None] = _realize

    def resolve(self, arguments: Namespace) -> None:
        """Fill in what was not given; refuse what contradicts itself."""
        found = vars(arguments)
        if found.get("init_from") is None:
            for name, value in FRESH.items():
                if name in found and found[name] is None:
                    found[name] = value
            if arguments.d_model % arguments.heads:
                raise ConfigError(
                    f"--heads {arguments.heads} does not divide --d-model {arguments.d_model}"
                )
            self.shape(arguments)
            return
        for name in FRESH:
            if found.get(name) is not None:
                option = name.replace("_", "-")
                raise ConfigError(f"--{option}: the model that --init-from names has its own")
        options = self._declared(arguments).options
        for name in self.options:
            found[name] = getattr(options, name)

    def config(self, arguments: Namespace) -> Any:
        """Return the model's configuration."""
        if getattr(arguments, "init_from", None) is not None:
            return self._declared(arguments).config
        return self.shape(arguments)

    def realize(self, arguments: Namespace) -> Any:
        """Return the recipe, ready to step."""
        recipe = self.recipe()
        shared = {"t_seq": arguments.t_seq, "t_batch": arguments.batch}
        shared["checkpointing"] = arguments.checkpointing
        if getattr(arguments, "init_from", None) is not None:
            recipe.realize_from(arguments.init_from, **shared, **_dtype(arguments))
        else:
            own = {name: getattr(arguments, name) for name in self.options}
            options = RecipeOptions(**shared, seed=arguments.seed, **own)
            self.start(recipe, arguments, self.shape(arguments), options)
        if arguments.tokenizer is not None:
            recipe.engine.carry_tokenizer(arguments.tokenizer)
        return recipe

    def _declared(self, arguments: Namespace) -> Any:
        """Return an engine of the shape that --init-from names, without weights."""
        path, engine = arguments.init_from, self.recipe().engine
        declared = engine.declared_from(path, arguments.seq, **_dtype(arguments))
        if declared.vocab != arguments.vocab:
            raise ConfigError(
                f"--init-from {path}: the model has {declared.vocab} tokens, the tokenizer "
                f"{arguments.vocab}: name a GGUF file that has the model's own by --tokenizer"
            )
        return declared


def tokenizer_of(arguments: Namespace) -> Tokenizer:
    """Return the tokenizer that is asked for, or that of --init-from; else a token is a byte."""
    path, source = arguments.tokenizer, getattr(arguments, "init_from", None)
    if path is None and source is not None and not Path(source).is_dir():
        path = source
    return ByteTokenizer() if path is None else Tokenizer.from_gguf(path)


def _dtype(arguments: Namespace) -> dict[str, str]:
    return {"weight_dtype": getattr(arguments, "weight_dtype", "f32")}


def _gpt2_config(arguments: Namespace) -> GPT2Config:
    return GPT2Config(
        vocab=arguments.vocab,
        d_model=arguments.d_model,
        n_heads=arguments.heads,
        d_ff=4 * arguments.d_model,
        n_layers=arguments.layers,
        context=arguments.seq,
    )


def default_d_ff(width: int) -> int:
    """Return 8/3 of a model's width, in steps of 32."""
    return -(-width * 8 // 96) * 32


def _llama_config(arguments: Namespace) -> LlamaConfig:
    width, heads = arguments.d_model, arguments.heads
    if width // heads % 2:
        raise ConfigError(f"--heads {heads}: heads of {width // heads} are odd; RoPE turns pairs")
    if arguments.kv_heads is not None and heads % arguments.kv_heads:
        raise ConfigError(f"--kv-heads {arguments.kv_heads} does not divide --heads {heads}")
    return LlamaConfig(
        vocab=arguments.vocab,
        d_model=width,
        n_heads=heads,
        n_kv_heads=arguments.kv_heads or heads,
        d_ff=arguments.d_ff or default_d_ff(width),
        n_layers=arguments.layers,
        context=arguments.seq,
    )


def _warm_config(arguments: Namespace) -> LlamaConfig:
    width = WarmStart.donor_embed_width(arguments.donor)
    return replace(_llama_config(arguments), donor_d_in=width)


def _start_warm(
    recipe: WarmStart, arguments: Namespace, config: LlamaConfig, options: RecipeOptions
) -> None:
    donor = arguments.donor
    recipe.realize_scratch(config, options)
    if arguments.init != "scratch":
        own = arguments.tokenizer
        tokens = Tokenizer.from_gguf(own).tokens if own else WarmStart.byte_tokens(donor)
        recipe.realize_warm(donor, config, tokens)
    if arguments.init == "pca":
        recipe.upload_lens(WarmStart.pca_lens(donor, config.d_model))
    recipe.build()


def _add_init_from(parser: ArgumentParser) -> None:
    source = "start from the weights of a GGUF file, or of a folder in Hugging Face's format"
    parser.add_argument("--init-from", type=model_file, metavar="PATH", help=source)


def _add_llama_arguments(parser: ArgumentParser) -> None:
    kv_heads = "heads of k and v; they must divide the heads (default: as many)"
    parser.add_argument("--kv-heads", type=whole(1), metavar="N", help=kv_heads)
    d_ff = "width of the feed-forward layers (default: 8/3 of the model's, in steps of 32)"
    parser.add_argument("--d-ff", type=whole(1), metavar="N", help=d_ff)
    dtype = "what weights are rounded to before a product (default f32: they are not)"
    parser.add_argument(
        "--weight-dtype", choices=list(WEIGHT_DTYPES.values()), default="f32", help=dtype
    )
    bias = "give the projections to q, k and v biases"
    parser.add_argument("--qkv-bias", action="store_true", default=None, help=bias)
    scale = "factor of the standard deviation of the blocks' matrices (default 1)"
    parser.add_argument("--init-scale", type=real(0), metavar="N", help=scale)


def _add_scratch_arguments(parser: ArgumentParser) -> None:
    _add_init_from(parser)
    _add_llama_arguments(parser)
    head = "give the model an output matrix of its own"
    parser.add_argument("--untied", action="store_true", default=None, help=head)


def _add_warm_arguments(parser: ArgumentParser) -> None:
    donor = "a GGUF file of a llama, qwen2, qwen3 or gpt2, whose embeddings the model sees"
    parser.add_argument("--donor", type=model_file, required=True, metavar="FILE", help=donor)
    start = (
        "donor: its table behind a random lens (the default); pca: behind the lens that keeps most "
        "of the table; scratch: a random table as wide as the donor's, to compare with"
    )
    parser.add_argument("--init", choices=("scratch", "donor", "pca"), default="donor", help=start)
    parser.add_argument("--init-from", type=_no_start, help=SUPPRESS)
    _add_llama_arguments(parser)
    parser.set_defaults(untied=True)


def _no_start(path: str) -> NoReturn:
    """Refuse --init-from where the model starts from a donor."""
    raise ArgumentTypeError(
        "a warm start takes a donor's embeddings alone, and draws the rest (--donor). "
        f"`toynn train from-scratch --init-from {path}` goes on with all weights of a model, that "
        "of a warm start too"
    )


_LLAMA_OPTIONS = ("weight_dtype", "untied", "qkv_bias", "init_scale")

MODELS = {
    "gpt2": Model("a small GPT-2 from scratch", GPT2, _gpt2_config, AdamW.for_lora, _add_init_from),
    "from-scratch": Model(
        "a small Llama-like model from scratch",
        FromScratch,
        _llama_config,
        AdamW.for_from_scratch,
        _add_scratch_arguments,
        _LLAMA_OPTIONS,
    ),
    "warm-start": Model(
        "a small Llama-like model that starts from a donor's embeddings",
        WarmStart,
        _warm_config,
        AdamW.for_from_scratch,
        _add_warm_arguments,
        _LLAMA_OPTIONS,
        _start_warm,
    ),
}
