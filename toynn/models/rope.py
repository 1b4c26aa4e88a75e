"""RoPE's frequencies: their base, and how files scale them for longer contexts.

    f[i] = base^(-2i/R)                       R channels of a head rotate, pair i by position f[i]
    llama3:  f[i] / factors[i]                one for each pair
    linear:  f[i] / s                         as if positions were s times closer together
    yarn:    f[i] (r[i] / s + 1 - r[i])       r[i] = (i - low) / (high - low), within 0 .. 1
             low, high = d(beta_fast), d(beta_slow);  d(n) = R ln(C / (2 pi n)) / (2 ln base)

Pair d(n) rotates n times over the C tokens of the original context. To get whole pairs, low is
rounded down and high is rounded up, unless config.json has truncate false, as in gpt-oss. GGUF has
no key for truncate: toynn writes one of its own, which llama.cpp does not know, so it rounds. For
most architectures llama.cpp reads no betas either: it takes them from its flags. Channels that yarn
rotates are multiplied by m (1 + ln(s) / 10), m = yarn_magnitude.
Source: Peng et al. 2023 (YaRN), arXiv:2309.00071, section 3.
"""

from collections.abc import Mapping
from math import ceil, floor, log, pi
from typing import Any

import numpy as np
from numpy.typing import NDArray

from toynn.errors import ConfigError
from toynn.formats.hf.config import Config
from toynn.models.checks import check_flags, check_positive, check_sizes, set_defaults
from toynn.models.hyper import Hyper, refuse
from toynn.models.keys import FACTOR, FREQ_BASE, KEY, MAGNITUDE, ORIGINAL, ROTATED, SCALING
from toynn.models.tables import Floats

BASE = 1e4  # where a file does not say
_CUT = "rope.scaling.yarn_truncate"
_FAST, _SLOW = "rope.scaling.yarn_beta_fast", "rope.scaling.yarn_beta_slow"
_EXTRA, _UNUSED = "rope.scaling.yarn_ext_factor", "rope.scaling.yarn_attn_factor"
_BETAS = {"beta_fast": (_FAST, 32.0), "beta_slow": (_SLOW, 1.0)}


def check_stretch(cfg: Any) -> None:
    """Check the fields of linear and yarn; set yarn's original_context if it is 0.

    Raises ConfigError for values out of range, and for fields that rope_scaling does not use.
    """
    kind = type(cfg).__name__
    check_positive(cfg, "rope_factor", "beta_fast", "beta_slow", "yarn_magnitude")
    check_sizes(cfg, "original_context", least=0)
    if cfg.rope_scaling != "yarn":
        betas = (cfg.beta_fast, cfg.beta_slow, cfg.yarn_magnitude, cfg.yarn_cut)
        if betas != (32.0, 1.0, 1.0, True):
            raise ConfigError(
                f"{kind}: beta_fast, beta_slow, yarn_magnitude and yarn_cut need rope_scaling "
                f"'yarn'; got {cfg.rope_scaling!r}"
            )
        if cfg.rope_scaling != "linear" and cfg.rope_factor != 1:
            raise ConfigError(
                f"{kind}: rope_factor needs rope_scaling 'linear' or 'yarn'; got "
                f"{cfg.rope_scaling!r}"
            )
        return
    if not cfg.original_context:
        object.__setattr__(cfg, "original_context", cfg.context)
    check_flags(cfg, "yarn_cut")
    low, high = _ramp(cfg)
    if cfg.rope_factor < 1 or cfg.beta_fast <= cfg.beta_slow or low > high:
        raise ConfigError(
            f"{kind}: yarn needs rope_factor >= 1, beta_fast > beta_slow, and pairs that rotate "
            f"beta_slow to beta_fast times in original_context; got {cfg.rope_factor:g}, "
            f"{cfg.beta_fast:g}, {cfg.beta_slow:g} and {cfg.original_context}"
        )


def _ramp(cfg: Any) -> tuple[float, float]:
    """Return the pairs at which yarn's ramp begins and ends."""
    if cfg.rope_base == 1:
        return 1.0, 0.0  # all pairs have the same frequency: there is no ramp
    R = rotated(cfg)

    def pair(rotations: float) -> float:
        waves = cfg.original_context / (2 * pi * rotations)
        return float(R * log(waves) / (2 * log(cfg.rope_base)))

    low, high = pair(cfg.beta_fast), pair(cfg.beta_slow)
    if cfg.yarn_cut:
        low, high = floor(low), ceil(high)
    return float(max(low, 0)), float(min(high, R - 1))


def rotated(cfg: Any) -> int:
    """Return how many channels of a head rotate."""
    return int(getattr(cfg, "rope_channels", None) or cfg.d_head)


def check_channels(cfg: Any) -> None:
    """Check rope_channels, the channels of a head that rotate; None becomes all of them.

    Raises ConfigError for an odd number, and for more than a head has.
    """
    set_defaults(cfg, rope_channels=cfg.d_head)
    check_sizes(cfg, "rope_channels")
    if cfg.rope_channels % 2 or cfg.rope_channels > cfg.d_head:
        raise ConfigError(
            f"{type(cfg).__name__}: rope_channels must be even, and at most the {cfg.d_head} of a "
            f"head; got {cfg.rope_channels}"
        )


def plain(base: float, channels: int) -> NDArray[np.float64]:
    """Return the angle in radians by which each pair rotates per position, without scaling."""
    return float(base) ** -(np.arange(0, channels, 2) / channels)


def frequencies(cfg: Any) -> Floats:
    """Return the angle in radians by which each pair of a head rotates per position."""
    angles = plain(cfg.rope_base, rotated(cfg))
    if cfg.rope_scaling == "yarn":
        low, high = _ramp(cfg)
        r = np.clip((np.arange(angles.size) - low) / max(high - low, 1e-3), 0, 1)
        angles *= r / cfg.rope_factor + 1 - r
    else:
        angles /= cfg.rope_factor
    stretched: Floats = (angles / (cfg.rope_factors or 1.0)).astype(np.float32)
    return stretched


def magnitude(cfg: Any) -> float:
    """Return the factor of rotated channels."""
    return (
        float(cfg.yarn_magnitude * _usual(cfg.rope_factor)) if cfg.rope_scaling == "yarn" else 1.0
    )


def _usual(factor: float) -> float:
    return 1 + 0.1 * log(factor)


# -- GGUF files ------------------------------------------------------------------------------------


def stretch_of(hyper: Hyper) -> dict[str, Any]:
    """Return a file's RoPE scaling as fields of a configuration.

    Refuses any kind but none, linear and yarn; llama.cpp would take another one for linear.
    """
    kind = hyper.word(SCALING, "linear")
    if kind not in ("none", "linear", "yarn"):
        refuse(
            hyper.file,
            f"{hyper.prefix}{SCALING} must be one of none, linear, yarn here; got {kind!r}",
        )
    factor = hyper.real(FACTOR, 1.0)
    if kind == "none" or (kind == "linear" and factor == 1):
        return {}
    if kind == "linear":
        return {"rope_scaling": kind, "rope_factor": factor}
    original = hyper.whole(ORIGINAL, hyper.whole("context_length"))
    betas = {name: hyper.real(key, usual) for name, (key, usual) in _BETAS.items()}
    for key, usual in ((_EXTRA, 1.0), (_UNUSED, float(np.float32(_usual(factor))))):
        if hyper.real(key, 1.0) not in (1, float(str(np.float32(usual)))):
            refuse(hyper.file, f"{hyper.prefix}{key} must be 1 here; got {hyper.real(key):g}")
    return {
        "rope_scaling": kind,
        "rope_factor": factor,
        "original_context": original,
        **betas,
        "yarn_magnitude": hyper.real(MAGNITUDE, 1.0),
        "yarn_cut": hyper.flag(_CUT, True),
    }


def written(cfg: Any) -> dict[str, Any]:
    """Return the hyper-parameters of a file."""
    if cfg.rope_scaling not in ("linear", "yarn"):
        return {}
    hyper: dict[str, Any] = {SCALING: cfg.rope_scaling, FACTOR: float(cfg.rope_factor)}
    if cfg.rope_scaling == "linear":
        return hyper
    betas = {key: (float(getattr(cfg, name)), usual) for name, (key, usual) in _BETAS.items()}
    hyper |= {key: beta for key, (beta, usual) in betas.items() if beta != usual}
    hyper |= {ORIGINAL: cfg.original_context, MAGNITUDE: float(cfg.yarn_magnitude)}
    return hyper if cfg.yarn_cut else hyper | {_CUT: False}


def unlike(cfg: Any, reads_betas: bool) -> list[str]:
    """Return how llama.cpp's RoPE differs."""
    if cfg.rope_scaling != "yarn":
        return []
    differences = (
        [] if cfg.yarn_cut else ["cuts YaRN's ramp to whole pairs, as if truncate were true"]
    )
    if not reads_betas and (cfg.beta_fast, cfg.beta_slow) != (32, 1):
        betas = f"`--yarn-beta-fast {cfg.beta_fast:g} --yarn-beta-slow {cfg.beta_slow:g}`"
        differences.append(f"does not read YaRN's betas here: give it {betas}")
    return differences


# -- Hugging Face ----------------------------------------------------------------------------------


def base_of(config: Config, hyper: dict[str, Any], base: float = BASE) -> dict[str, Any]:
    """Set rope.freq_base; return config.json's other keys for RoPE, the kind as rope_type."""
    rope: dict[str, Any] = {}
    for key in ("rope_scaling", "rope_parameters"):  # of old and of new versions
        value = config.get(key) or {}
        if not isinstance(value, dict):
            config.refuse(f"{key} must be an object; got {value!r}")
        rope |= value
    base = rope.pop("rope_theta", config.get("rope_theta", base))
    hyper[FREQ_BASE] = config.number("rope_theta", base, real=True)
    old = rope.pop("type", "default")  # the key of old versions
    return {"rope_type": old} | rope


def part_of(config: Config, hyper: dict[str, Any], rope: dict[str, Any], usual: float) -> None:
    """Set rope.dimension_count by partial_rotary_factor, which is removed from ``rope``."""
    part = rope.pop("partial_rotary_factor", config.get("partial_rotary_factor", usual))
    part = config.number("partial_rotary_factor", part, real=True)
    hyper[ROTATED] = config.number("partial_rotary_factor", int(width_of(hyper) * part), real=False)


def part_written(hyper: Mapping[str, Any]) -> dict[str, float]:
    """Return config.json's partial_rotary_factor."""
    channels, width = hyper[ROTATED], hyper[KEY]
    part = channels / width
    if int(width * part) != channels:  # readers truncate this product
        part = (channels + 0.5) / width
    return {"partial_rotary_factor": part}


def width_of(hyper: Mapping[str, Any]) -> int:
    """Return the width of a head."""
    whole, heads = hyper.get("embedding_length", 0), hyper.get("attention.head_count", 1)
    return int(hyper.get(KEY) or whole // heads)


def numbers(config: Config, key: str, values: object) -> Floats:
    """Return a list of numbers above 0, by its key."""
    if not isinstance(values, list):
        config.refuse(f"{key} must be a list of numbers; got {values!r}")
    return np.array([config.number(key, value, real=True) for value in values], np.float32)


def factors_of(config: Config, hyper: dict[str, Any], base: float = BASE) -> Floats | None:
    """Set rope.freq_base and the keys of linear or yarn; return llama3's factors, else None.

    Refuses every other kind of RoPE by its name.
    """
    rope = base_of(config, hyper, base)
    kind = rope.pop("rope_type")
    if kind in ("linear", "yarn"):
        _stretch(config, hyper, kind, rope)
        return None
    if kind == "default" and not any(rope.values()):
        return None
    keys = ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings")
    if kind != "llama3" or rope.keys() != set(keys):
        config.refuse(f"RoPE must be default, linear, yarn or llama3; got {kind!r} with {rope}")
    factor, low, high, context = (config.number(key, rope[key], real=True) for key in keys)
    size = width_of(hyper)
    if not low < high or not size <= 1 << 16:
        config.refuse(f"RoPE of {size} channels is out of range: {rope}")
    waves = 2 * pi * hyper[FREQ_BASE] ** (np.arange(0, size, 2) / size)
    smooth = np.clip((context / waves - low) / (high - low), 0, 1)
    factors = 1 / ((1 - smooth) / factor + smooth)
    return np.asarray(factors, np.float32)


def _stretch(config: Config, hyper: dict[str, Any], kind: str, rope: dict[str, Any]) -> None:
    """Set GGUF's keys for linear or yarn."""

    def number(key: str, value: object) -> float:
        return config.number(key, value, real=True)

    context = hyper.get("context_length")
    factor = rope.pop("factor", None)
    hyper[SCALING] = kind
    if kind == "yarn":
        original = rope.pop("original_max_position_embeddings", None) or context
        original = int(config.number("original_max_position_embeddings", original, real=False))
        if factor is None:
            factor = (context or 0) / original
    hyper[FACTOR] = factor = number("factor", factor)
    if kind == "yarn":
        hyper[ORIGINAL] = original
        for name, (key, usual) in _BETAS.items():
            hyper[key] = number(name, rope.pop(name, None) or usual)
        whole = rope.pop("attention_factor", None)
        scales = [rope.pop(key, None) for key in ("mscale", "mscale_all_dim")]
        usual = _usual(factor) if factor > 1 else 1.0
        if whole is None and all(scales):
            m, n = (number("mscale", scale) for scale in scales)
            whole = (1 + m * (usual - 1)) / (1 + n * (usual - 1))
        hyper[MAGNITUDE] = number("attention_factor", usual if whole is None else whole) / usual
        if (cut := rope.pop("truncate", True)) not in (True, False):
            config.refuse(f"truncate must be true or false; got {cut!r}")
        if not cut:
            hyper[_CUT] = False
    if any(rope.values()):
        config.refuse(f"rope_scaling {kind} has unknown keys: {', '.join(rope)}")


def rope_scaling(hyper: Mapping[str, Any]) -> dict[str, Any]:
    """Return config.json's rope_scaling for linear and yarn, else nothing."""
    kind, factor = hyper.get(SCALING, "none"), hyper.get(FACTOR, 1.0)
    if kind == "none":
        return {}
    scaling = {"rope_type": kind, "factor": factor}
    if kind == "yarn":
        scaling |= {name: hyper.get(key, usual) for name, (key, usual) in _BETAS.items()}
        scaling["original_max_position_embeddings"] = hyper[ORIGINAL]
        scaling["attention_factor"] = float(hyper[MAGNITUDE] * _usual(factor))
        scaling["truncate"] = hyper.get(_CUT, True)
    return {"rope_scaling": scaling}
