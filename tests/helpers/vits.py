"""Small vision transformers of both variants, and pictures for them."""

import numpy as np

from toynn import RecipeOptions, ViTConfig
from toynn.recipes import VitTiny

SIZES = dict(image=12, patch=4, channels=2, d_model=24, n_heads=3, d_ff=40, n_layers=2, classes=5)
VARIANTS = {
    "timm": {},
    "upstream": {"norm": "rmsnorm", "act": "silu", "bias": False},
    "mixed": {"norm": "rmsnorm", "act": "gelu", "bias": True},
}


def config(variant="timm", **sizes):
    return ViTConfig(**SIZES | VARIANTS[variant] | sizes)


def make(variant="timm", batch=1, seed=5, **options):
    recipe = VitTiny()
    recipe.realize(config(variant), RecipeOptions(t_batch=batch, seed=seed, **options))
    return recipe


def shake(engine, rng):
    """Load random weights, biases and gains too, so that no gradient is small; return them."""
    weights = {
        name: (("norm" in name and "weight" in name) + 0.3 * rng.standard_normal(w.shape))
        for name, w in engine.weights().items()
    }
    weights = {name: w.astype(np.float32) for name, w in weights.items()}
    engine.load_weights(weights)
    return weights


def pictures(rng, batch, cfg=None):
    """Pixels (B, H, W, C) and classes (B,)."""
    cfg = cfg or config()
    pixels = rng.standard_normal((batch, cfg.image, cfg.image, cfg.channels)).astype(np.float32)
    return pixels, rng.integers(0, cfg.classes, batch)


def cut(pixels, patch):
    """Patches of pixels (B, H, W, C), one after the other."""
    B, H, W, _ = pixels.shape
    corners = [(i, j) for i in range(0, H, patch) for j in range(0, W, patch)]
    return np.array(
        [[pixels[b, i : i + patch, j : j + patch].ravel() for i, j in corners] for b in range(B)]
    )
