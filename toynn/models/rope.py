"""What config.json says of RoPE: the base of its frequencies, and Llama 3.1's factors of them."""

from math import pi
from typing import Any

import numpy as np
from numpy.typing import NDArray

from toynn.formats.hf.config import Config

__all__ = ["base_of", "factors_of", "numbers"]

BASE = 1e4  # where a file does not say


def base_of(config: Config, found: dict[str, Any]) -> dict[str, Any]:
    """Set rope.freq_base; return what else config.json says of RoPE, the kind as rope_type."""
    rope: dict[str, Any] = {}
    for key in ("rope_scaling", "rope_parameters"):  # of old and of new versions
        value = config.get(key) or {}
        if not isinstance(value, dict):
            config.refuse(f"{key} must be an object; got {value!r}")
        rope |= value
    base = rope.pop("rope_theta", config.get("rope_theta", BASE))
    found["rope.freq_base"] = config.number("rope_theta", base, real=True)
    old = rope.pop("type", "default")  # of old versions
    return {"rope_type": old} | rope


def numbers(config: Config, key: str, values: object) -> NDArray[np.float32]:
    """Return a list of numbers above 0, by its key."""
    if not isinstance(values, list):
        config.refuse(f"{key} must be a list of numbers; got {values!r}")
    return np.array([config.number(key, value, real=True) for value in values], np.float32)


def factors_of(config: Config, found: dict[str, Any]) -> NDArray[np.float32] | None:
    """Set rope.freq_base; return what the frequencies are divided by, where they are.

    Refuses every other kind of RoPE by its name.
    """
    rope = base_of(config, found)
    kind = rope.pop("rope_type")
    if kind == "default" and not any(rope.values()):
        return None
    keys = ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings")
    if kind != "llama3" or rope.keys() != set(keys):
        config.refuse(f"RoPE must be default or llama3; got {kind!r} with {rope}")
    factor, low, high, context = (config.number(key, rope[key], real=True) for key in keys)
    width, heads = found.get("embedding_length", 0), found.get("attention.head_count", 1)
    size = found.get("attention.key_length", width // heads)
    if not low < high or not size <= 1 << 16:
        config.refuse(f"RoPE of {size} channels is out of range: {rope}")
    waves = 2 * pi * found["rope.freq_base"] ** (np.arange(0, size, 2) / size)
    smooth = np.clip((context / waves - low) / (high - low), 0, 1)
    factors = 1 / ((1 - smooth) / factor + smooth)
    return np.asarray(factors, np.float32)
