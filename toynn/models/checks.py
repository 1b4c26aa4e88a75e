"""Checks that the configurations of all architectures share; each raises ConfigError."""

from math import inf, isfinite
from numbers import Integral
from typing import Any

from toynn.errors import ConfigError
from toynn.formats.hf.config import Config

#: Window by model type where config.json has no sliding_window; None: attention sees all keys.
_WINDOWS = {"mistral": 4096, "ministral3": None}
_MOST_TAPS = 16


def check_sizes(cfg: Any, *names: str, least: int = 1) -> None:
    """Make these fields of a configuration plain ints. NumPy integers are valid, bools are not.

    Raises ConfigError for anything but a whole number of at least ``least``.
    """
    for name in names:
        value = getattr(cfg, name)
        if not isinstance(value, Integral) or isinstance(value, bool) or value < least:
            raise ConfigError(
                f"{type(cfg).__name__}: {name} must be a whole number >= {least}; got {value!r}"
            )
        object.__setattr__(cfg, name, int(value))  # the dataclass is frozen


def set_defaults(cfg: Any, **defaults: object) -> None:
    """Give values to the fields of a configuration that are None."""
    for name, value in defaults.items():
        if getattr(cfg, name) is None:
            object.__setattr__(cfg, name, value)


def check_positive(cfg: Any, *names: str) -> None:
    """Check that fields are finite numbers above 0; raises ConfigError."""
    for name in names:
        value = getattr(cfg, name)
        if not isinstance(value, int | float) or not (isfinite(value) and value > 0):
            raise ConfigError(
                f"{type(cfg).__name__}: {name} must be a number above 0; got {value!r}"
            )


def check_flags(cfg: Any, *names: str) -> None:
    """Check that fields are True or False; raises ConfigError."""
    for name in names:
        value = getattr(cfg, name)
        if not isinstance(value, bool):
            raise ConfigError(f"{type(cfg).__name__}: {name} must be True or False; got {value!r}")


def check_full(config: Config, hyper: dict[str, Any]) -> None:
    """Refuse a config.json with windows or any attention other than full_attention."""
    kinds = config.get("layer_types") or []
    if not isinstance(kinds, list) or any(kind != "full_attention" for kind in kinds):
        config.refuse(f"layer_types must be full_attention; got {kinds!r}")
    if (kind := config.get("model_type")) not in _WINDOWS:
        return
    window, context = config.get("sliding_window", _WINDOWS[kind]), hyper.get("context_length", 0)
    if window is not None and config.number("sliding_window", window, real=False) < context:
        config.refuse(
            f"sliding_window must be null or at least max_position_embeddings, "
            f"{context}; got {window} (default: {_WINDOWS[kind]})"
        )


def check_heads(cfg: Any) -> None:
    """Check that n_heads divides d_model, and n_kv_heads n_heads; raises ConfigError."""
    kind = type(cfg).__name__
    if cfg.head_dim is None and cfg.d_model % cfg.n_heads:
        raise ConfigError(
            f"{kind}: n_heads must divide d_model, unless head_dim is given; got "
            f"{cfg.n_heads} and {cfg.d_model}"
        )
    if cfg.n_heads % cfg.n_kv_heads:
        raise ConfigError(
            f"{kind}: n_kv_heads must divide n_heads; got {cfg.n_kv_heads} and {cfg.n_heads}"
        )
    if cfg.d_head % 2:
        raise ConfigError(f"{kind}: RoPE rotates pairs: a head of {cfg.d_head} is odd")


def check_divided(cfg: Any) -> None:
    """Check that n_heads divides d_model, and norm_eps; raises ConfigError."""
    kind = type(cfg).__name__
    if cfg.d_model % cfg.n_heads:
        raise ConfigError(
            f"{kind}: n_heads must divide d_model; got {cfg.n_heads} and {cfg.d_model}"
        )
    if not isinstance(cfg.norm_eps, float) or not 0 < cfg.norm_eps < inf:
        raise ConfigError(f"{kind}: norm_eps must be a finite float above 0; got {cfg.norm_eps!r}")


def check_recurrent(cfg: Any, least: str = "") -> None:
    """Make attention_blocks a tuple of ascending indices; check conv_taps. Raises ConfigError."""
    kind, blocks = type(cfg).__name__, tuple(cfg.attention_blocks)
    within = all(isinstance(n, int) and 0 <= n < cfg.n_layers for n in blocks)
    if not within or list(blocks) != sorted(set(blocks)) or (least and not blocks):
        raise ConfigError(
            f"{kind}: attention_blocks must be indices of blocks,{least} ascending; got "
            f"{cfg.attention_blocks!r}"
        )
    object.__setattr__(cfg, "attention_blocks", blocks)
    check_taps(cfg)


def check_taps(cfg: Any) -> None:
    """Check that conv_taps is at most 16; raises ConfigError."""
    if cfg.conv_taps > _MOST_TAPS:
        raise ConfigError(
            f"{type(cfg).__name__}: conv_taps must be at most {_MOST_TAPS}; got {cfg.conv_taps}"
        )


def check_exported_heads(cfg: Any) -> None:
    """Raise ConfigError unless heads are d_model / n_heads wide: llama.cpp reads no others."""
    if cfg.d_head * cfg.n_heads != cfg.d_model:
        raise ConfigError(
            f"export: llama.cpp reads {cfg.arch} with heads of d_model / n_heads only; got "
            f"{cfg.n_heads} heads of {cfg.d_head} in {cfg.d_model}"
        )


def check_lists(cfg: Any, length: int, *names: str) -> None:
    """Make fields tuples of ``length`` floats above 0; raises ConfigError for anything else."""
    for name in names:
        values = getattr(cfg, name)
        try:
            numbers = tuple(map(float, values))
        except (TypeError, ValueError):
            raise ConfigError(
                f"{type(cfg).__name__}: {name} must be numbers; got {values!r}"
            ) from None
        if len(numbers) != length or not all(isfinite(x) and x > 0 for x in numbers):
            raise ConfigError(
                f"{type(cfg).__name__}: {name} must be {length} numbers above 0; got "
                f"{len(numbers)}: {numbers[:4]}"
            )
        object.__setattr__(cfg, name, numbers)


def check_factors(cfg: Any, scalings: tuple[str, ...]) -> None:
    """Make rope_factors a tuple of floats: one for each pair of a head with "llama3", else none.

    ``scalings`` are the values that rope_scaling may have. Raises ConfigError.
    """
    kind = type(cfg).__name__
    try:
        object.__setattr__(cfg, "rope_factors", tuple(map(float, cfg.rope_factors)))
    except (TypeError, ValueError):
        raise ConfigError(
            f"{kind}: rope_factors must be numbers; got {cfg.rope_factors!r}"
        ) from None
    if cfg.rope_scaling not in scalings:
        raise ConfigError(
            f"{kind}: rope_scaling {cfg.rope_scaling!r} is not known; it must be one of "
            f"{', '.join(scalings)}"
        )
    needed = cfg.d_head // 2 if cfg.rope_scaling == "llama3" else 0
    if len(cfg.rope_factors) != needed:
        raise ConfigError(
            f"{kind}: rope_scaling {cfg.rope_scaling!r} needs {needed} rope_factors; got "
            f"{len(cfg.rope_factors)}"
        )
    if not all(isfinite(factor) and factor > 0 for factor in cfg.rope_factors):
        raise ConfigError(f"{kind}: every one of rope_factors must be a number above 0")
