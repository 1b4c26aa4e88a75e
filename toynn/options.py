"""The options that every recipe takes, beside the model's own configuration."""

import math
import operator
from dataclasses import dataclass
from typing import Any

from toynn.errors import ConfigError

__all__ = ["DECAYS", "PACKS", "WEIGHT_DTYPES", "RecipeOptions", "checked_packing"]

#: Names of weight types, by ggml's number for each.
WEIGHT_DTYPES = {0: "f32", 1: "f16", 30: "bf16"}
#: Which weights decay.
DECAYS = ("all", "matrices")
#: Whether frozen weights are kept packed.
PACKS = ("auto", "always", "never")


@dataclass
class RecipeOptions:
    """Options of a recipe; each value is checked whenever it is set.

    Attributes
    ----------
    t_seq
        Tokens per sequence; 0 means the context length of the model.
    t_batch
        Sequences per step.
    weight_dtype
        What weights are rounded to when they are multiplied: "f32", "f16" or "bf16", or ggml's
        number for one (0, 1, 30). It always reads as the name. "bf16" also makes the products
        "medium" (see ``toynn.set_float32_matmul_precision``).
    untied
        Whether the model has an output matrix of its own.
    qkv_bias
        Whether the projections to q, k and v have biases.
    seed
        Any integer.
    init_scale
        Factor of the standard deviation of new block matrices; for LoRA, that of A itself.
    checkpointing
        Whether the activations of each block are computed again in the backward pass instead of
        being kept: less memory, the same results, about a forward pass more work.
    packed
        Whether batches are examples one behind another, in segments: up to t_batch * t_seq tokens,
        of which only those are computed that there are. See ``SequenceEngine.step``.
    decay
        Which weights AdamW's decay makes smaller: "all", or "matrices" alone, tables of embeddings
        among them, and no gains, biases and other vectors.
    pack_base
        Whether the frozen weights of a base are kept packed, in the order in which products read
        them, so that they are decoded and packed once and not in every step: "always", "never", or
        "auto": where a step has so few rows that it gains some percent, if the copies fit into
        memory beside everything else. Each weight takes 8 bytes, or 4 where products are of
        bfloat16, or 12 where they are of three parts. Results are the same.

    Raises
    ------
    ConfigError
        On a value out of range or of the wrong type, and on a name that is no option.
    """

    t_seq: int = 0
    t_batch: int = 1
    weight_dtype: str | int = "f32"
    untied: bool = False
    qkv_bias: bool = False
    seed: int = 0
    init_scale: float = 1.0
    checkpointing: bool = False
    packed: bool = False
    decay: str = "all"
    pack_base: str = "never"

    def __setattr__(self, name: str, value: Any) -> None:
        """Check and set one option."""
        if name not in _OPTIONS:
            raise ConfigError(
                f"RecipeOptions: no option is called {name}; there are {', '.join(_OPTIONS)}"
            )
        check, expected = _OPTIONS[name]
        try:
            checked = check(value)
        except (TypeError, ValueError, OverflowError):
            raise ConfigError(f"RecipeOptions: {name} must be {expected}; got {value!r}") from None
        object.__setattr__(self, name, checked)


def _integer(value: Any, least: int | None = None) -> int:
    number = operator.index(value)
    if isinstance(value, bool) or (least is not None and number < least):
        raise ValueError
    return number


def _flag(value: Any) -> bool:
    if not isinstance(value, bool):
        raise TypeError
    return value


def _weight_dtype(value: Any) -> str:
    name = value if isinstance(value, str) else WEIGHT_DTYPES.get(_integer(value))
    if name not in WEIGHT_DTYPES.values():
        raise ValueError
    return str(name)


def checked_packing(value: Any) -> str:
    """Return what says whether frozen weights are kept packed; ConfigError if it is none."""
    try:
        return _packing(value)
    except ValueError:
        raise ConfigError(f"pack_base must be one of {', '.join(PACKS)}; got {value!r}") from None


def _packing(value: Any) -> str:
    if value not in PACKS:
        raise ValueError
    return str(value)


def _decay(value: Any) -> str:
    if value not in DECAYS:
        raise ValueError
    return str(value)


def _scale(value: Any) -> float:
    if isinstance(value, bool | str) or not (math.isfinite(value) and value >= 0):
        raise ValueError
    return float(value)


_OPTIONS: dict[str, tuple[Any, str]] = {
    "t_seq": (
        lambda value: _integer(value, 0),
        "an integer of at least 0 (0: the model's context)",
    ),
    "t_batch": (lambda value: _integer(value, 1), "an integer of at least 1"),
    "weight_dtype": (_weight_dtype, '"f32", "f16", "bf16" or ggml\'s 0, 1, 30'),
    "untied": (_flag, "True or False"),
    "qkv_bias": (_flag, "True or False"),
    "seed": (_integer, "an integer"),
    "init_scale": (_scale, "a finite number of at least 0"),
    "checkpointing": (_flag, "True or False"),
    "packed": (_flag, "True or False"),
    "decay": (_decay, '"all" or "matrices"'),
    "pack_base": (_packing, '"auto", "always" or "never"'),
}
