"""The recipes of ``toynn train``: what each is called, takes and makes."""

from argparse import ArgumentParser, Namespace
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from toynn.adamw import AdamW
from toynn.cli._numbers import real, whole
from toynn.data.text import VOCAB
from toynn.engines.gpt2 import GPT2Config
from toynn.engines.llama import LlamaConfig
from toynn.errors import ConfigError
from toynn.options import WEIGHT_DTYPES, RecipeOptions
from toynn.recipes import GPT2, FromScratch

__all__ = ["MODELS", "SHAPE", "Model"]

#: Arguments that say the model's shape: config.toml has them as the model's configuration.
SHAPE = ("d_model", "layers", "heads", "kv_heads", "d_ff")


@dataclass(frozen=True)
class Model:
    """A recipe on the command line, beside what all of them share."""

    help: str
    recipe: Callable[[], Any]
    config: Callable[[Namespace], Any]
    optimizer: Callable[[], AdamW]
    options: Callable[[Namespace], dict[str, Any]] = lambda arguments: {}
    add_arguments: Callable[[ArgumentParser], None] = lambda parser: None

    def realize(self, arguments: Namespace) -> Any:
        """Return the recipe, ready to step."""
        sizes = {"t_seq": arguments.seq, "t_batch": arguments.batch, "seed": arguments.seed}
        recipe = self.recipe()
        recipe.realize(self.config(arguments), RecipeOptions(**sizes, **self.options(arguments)))
        return recipe


def _gpt2_config(arguments: Namespace) -> GPT2Config:
    return GPT2Config(
        vocab=VOCAB,
        d_model=arguments.d_model,
        n_heads=arguments.heads,
        d_ff=4 * arguments.d_model,
        n_layers=arguments.layers,
        context=arguments.seq,
    )


def _add_llama_arguments(parser: ArgumentParser) -> None:
    kv_heads = "heads of k and v; they must divide the heads (default: as many)"
    parser.add_argument("--kv-heads", type=whole(1), metavar="N", help=kv_heads)
    d_ff = "width of the feed-forward layers (default: 8/3 of the model's, in steps of 32)"
    parser.add_argument("--d-ff", type=whole(1), metavar="N", help=d_ff)
    dtype = "what weights are rounded to before a product (default f32: they are not)"
    parser.add_argument(
        "--weight-dtype", choices=list(WEIGHT_DTYPES.values()), default="f32", help=dtype
    )
    head = "give the model an output matrix of its own"
    parser.add_argument("--untied", action="store_true", help=head)
    bias = "give the projections to q, k and v biases"
    parser.add_argument("--qkv-bias", action="store_true", help=bias)
    scale = "factor of the standard deviation of the blocks' matrices (default 1)"
    parser.add_argument("--init-scale", type=real(0), default=1.0, metavar="N", help=scale)


def _llama_config(arguments: Namespace) -> LlamaConfig:
    width, heads = arguments.d_model, arguments.heads
    if width // heads % 2:
        raise ConfigError(f"--heads {heads}: heads of {width // heads} are odd; RoPE turns pairs")
    if arguments.kv_heads is not None and heads % arguments.kv_heads:
        raise ConfigError(f"--kv-heads {arguments.kv_heads} does not divide --heads {heads}")
    return LlamaConfig(
        vocab=VOCAB,
        d_model=width,
        n_heads=heads,
        n_kv_heads=arguments.kv_heads or heads,
        d_ff=arguments.d_ff or -(-width * 8 // 96) * 32,
        n_layers=arguments.layers,
        context=arguments.seq,
    )


def _llama_options(arguments: Namespace) -> dict[str, Any]:
    names = ("weight_dtype", "untied", "qkv_bias", "init_scale")
    return {name: getattr(arguments, name) for name in names}


MODELS = {
    "gpt2": Model("a small GPT-2 from scratch", GPT2, _gpt2_config, AdamW.for_lora),
    "from-scratch": Model(
        "a small Llama-like model from scratch",
        FromScratch,
        _llama_config,
        AdamW.for_from_scratch,
        _llama_options,
        _add_llama_arguments,
    ),
}
