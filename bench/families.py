"""Forward and backward of a small model of each architecture, beside a Llama of the same sizes.

Four blocks have 256 channels, 4 heads of 64, 2 heads of keys and values, and MLPs of 768. The
experts that a token uses are together as wide. There are 512 ids, and one sequence of 128 tokens.
What an architecture has beside these (states, streams, windows) is as in ``toynn train from-scratch
--arch``.
"""

from collections.abc import Callable
from dataclasses import fields

import numpy as np

from toynn.models import ARCHITECTURES, LlamaConfig, architecture
from toynn.options import RecipeOptions
from toynn.recipes import FromScratch

__all__ = ["active", "configuration", "names", "step"]

T, WIDTH = 128, 768
SIZES = {"vocab": 512, "d_model": 256, "n_heads": 4, "n_kv_heads": 2, "n_layers": 4, "context": T}


def names(only: str = "") -> list[str]:
    """Return the architectures that are relatives of Llama, by a part of their names."""
    kinds = {name: architecture(name).config_type for name in ARCHITECTURES}
    return [name for name, kind in kinds.items() if issubclass(kind, LlamaConfig) and only in name]


def configuration(name: str) -> LlamaConfig:
    """Return a configuration of an architecture; raise ConfigError where it needs another shape."""
    model = architecture(name)
    has = {field.name: field.default for field in fields(model.config_type)}
    own = {"d_ff": WIDTH}
    if "kv_rank" in has:  # keys and values of each head come from one latent
        own["n_kv_heads"] = SIZES["n_heads"]
    if has.get("n_experts_used"):
        own["expert_d_ff" if "expert_d_ff" in has else "d_ff"] = WIDTH // has["n_experts_used"]
    return model.new_config(**SIZES | own, arch=name)


def active(cfg: LlamaConfig) -> int:
    """Return how many parameters a token is computed with."""
    return architecture(cfg.arch).active(cfg, RecipeOptions())


def step(cfg: LlamaConfig, n_threads: int) -> Callable[[], float]:
    """Return a call that computes loss and gradients of all weights."""
    recipe = FromScratch()
    recipe.realize(cfg, RecipeOptions(t_seq=T))
    recipe.session.n_threads = n_threads
    ids, labels = np.random.default_rng(0).integers(0, SIZES["vocab"], (2, T), np.int32)
    return lambda: recipe.accumulate(ids, None, labels)
