"""Each recipe, small, on any backend: five of its steps, and their losses."""

from dataclasses import replace
from functools import partial

import numpy as np
import vits
from lora_bases import write_base

import toynn

__all__ = ["RECIPES", "SIZES", "STEPS", "text"]


STEPS = 5
T = 12
OPTIONS = {"t_seq": T, "t_batch": 2, "seed": 4}
SIZES = {"vocab": 61, "d_model": 20, "n_heads": 5, "d_ff": 28, "n_layers": 2, "context": 16}


def text(recipe, steps=STEPS, first=0):
    """Train on texts whose last labels do not count."""
    rng = np.random.default_rng(2)
    # Of adapters the gradients of the first step are rounding here and there, and Adam makes steps
    # of one size of them: at a usual rate two backends would soon be at different weights.
    adamw = replace(toynn.AdamW.for_lora(), lr=1e-6) if first else toynn.AdamW.for_from_scratch()
    positions = np.tile(np.arange(T, dtype=np.int32), 2)
    losses = []
    for k in range(first, first + steps):
        ids, labels = rng.integers(0, SIZES["vocab"], (2, 2 * T))
        labels[-3:] = -100
        losses.append(recipe.step(ids, positions, labels, adamw.hp_for_step(k), k == first))
    return losses


def gpt2(backend, tmp_path):
    recipe = toynn.recipes.GPT2(backend=backend)
    recipe.realize(toynn.GPT2Config(**SIZES), toynn.RecipeOptions(**OPTIONS, checkpointing=True))
    return recipe, text(recipe)


def from_scratch(arch, dtype="f32"):
    def train(backend, tmp_path):
        recipe = toynn.recipes.FromScratch(backend=backend)
        config = toynn.LlamaConfig(**SIZES, n_kv_heads=1, arch=arch)
        options = toynn.RecipeOptions(**OPTIONS, qkv_bias=arch == "qwen2", weight_dtype=dtype)
        recipe.realize(config, options)
        return recipe, text(recipe)

    return train


def warm_start(backend, tmp_path):
    recipe = toynn.recipes.WarmStart(backend=backend)
    config = toynn.LlamaConfig(**SIZES, n_kv_heads=5, donor_d_in=12)
    recipe.realize_scratch(config, toynn.RecipeOptions(**OPTIONS, untied=True))
    recipe.upload_donor(np.random.default_rng(1).standard_normal((SIZES["vocab"], 12)))
    recipe.build()
    return recipe, text(recipe)


def lora(arch, type, activations="float32", **settings):
    def train(backend, tmp_path):
        width = {"d_model": 256, "n_heads": 4, "d_ff": 256, "n_layers": 1, "context": 16}
        path = tmp_path / f"{backend}.gguf"
        write_base(path, arch, type, **width)
        recipe = toynn.recipes.LoRA(backend=backend)
        options = toynn.RecipeOptions(**OPTIONS, activations=activations)
        recipe.realize(path, None, 2, options, targets="all-linear", dropout=0.2, **settings)
        return recipe, text(recipe, first=1)

    return train


def vit(backend, tmp_path, **options):
    recipe = toynn.recipes.VitTiny(backend=backend)
    recipe.realize(vits.config(), toynn.RecipeOptions(seed=4, **options))
    rng, adamw = np.random.default_rng(5), toynn.AdamW.for_from_scratch()
    pixels, labels = vits.pictures(rng, 1)
    image = vits.cut(pixels, 4)[0]
    return recipe, [
        recipe.step(image, [0], labels, adamw.hp_for_step(k), k == 0) for k in range(STEPS)
    ]


RECIPES = {
    "gpt2": gpt2,
    **{f"from-scratch-{arch}": from_scratch(arch) for arch in ("llama", "qwen2", "qwen3")},
    "from-scratch-f16": from_scratch("llama", "f16"),
    "warm-start": warm_start,
    **{
        f"lora-{arch}-{type}": lora(arch, type)
        for arch, type in (("llama", "Q4_K"), ("gpt2", "Q8_0"))
    },
    "lora-dora-bfloat16": lora("llama", "Q4_K", "bfloat16", use_dora=True),
    "vit": vit,
    "vit-bfloat16": partial(vit, activations="bfloat16"),
}
